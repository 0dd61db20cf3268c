{{/* What the scaling policies say of the pools and roles of this release, and what contradicts its Deployments. */}}

{{/* The policy file as JSON. */}}
{{- define "millrace.scaling.file" -}}
{{- $file := fromToml (required "autoscaler.policies: the text of a scaling policy file" .Values.autoscaler.policies) -}}
{{- if hasKey $file "Error" }}{{ fail (printf "autoscaler.policies: %s" $file.Error) }}{{ end -}}
{{- toJson $file -}}
{{- end }}

{{/* The table of a pool with the defaults of the file, as JSON: file, pool. */}}
{{- define "millrace.scaling.policy" -}}
{{- $tables := default dict .file.pools -}}
{{- $chosen := "" -}}
{{- range $name, $_ := $tables -}}
{{- if and (hasSuffix "*" $name) (hasPrefix (trimSuffix "*" $name) $.pool) (gt (len $name) (len $chosen)) }}{{ $chosen = $name }}{{ end -}}
{{- end -}}
{{- if hasKey $tables .pool }}{{ $chosen = .pool }}{{ end -}}
{{- $found := deepCopy (default dict .file.defaults) -}}
{{- range $field, $value := default dict (get $tables $chosen) }}{{ $_ := set $found $field $value }}{{ end -}}
{{- toJson $found -}}
{{- end }}

{{/*
The actuator of a pool or role, as JSON: root, file, policy, where (in messages).
`kind` is that of its table, empty if it scales nothing of this release; `changes`: it changes replicas.
*/}}
{{- define "millrace.scaling.actuator" -}}
{{- $tables := default dict .file.actuators -}}
{{- $only := ternary (first (append (keys $tables) "")) "" (eq (len $tables) 1) -}}
{{- $name := coalesce .policy.actuator $only .root.Values.autoscaler.actuator -}}
{{- $changes := ne (default "active" .policy.mode) "observe" -}}
{{- $table := get $tables $name -}}
{{- if and $changes (not $table) }}{{ fail (printf "%s: autoscaler.policies has no table actuators.%s" .where $name) }}{{ end -}}
{{- $table = default dict $table -}}
{{- $kind := default "" $table.kind -}}
{{- if eq $kind "embedded" }}{{ fail (printf "%s: actuators.%s is of kind embedded, which is that of `millrace up` alone" .where $name) }}{{ end -}}
{{- if and (eq $kind "kubernetes") (ne (default .root.Release.Namespace $table.namespace) .root.Release.Namespace) }}{{ $kind = "" }}{{ end -}}
{{- $release := include "millrace.fullname" .root -}}
{{- if and (eq $kind "kubernetes") (ne (default "millrace" $table.release) $release) }}{{ fail (printf "%s: actuators.%s needs release = %q, the first part of the names of these Deployments" .where $name $release) }}{{ end -}}
{{- if and (eq $kind "keda") (not .root.Values.autoscaler.keda.enabled) }}{{ fail (printf "%s: actuators.%s is of kind keda and needs autoscaler.keda.enabled" .where $name) }}{{ end -}}
{{- toJson (dict "name" $name "kind" $kind "changes" (and $changes (ne $kind "")) "standby" (default false $table.standby) "perZone" (default false $table.per_zone)) -}}
{{- end }}

{{/* Fails where a pool's Deployments are not those that its policy may order: pool, spec, file, policy, actuator. */}}
{{- define "millrace.scaling.check" -}}
{{- $standby := default false .spec.standby -}}
{{- if and (not $standby) (gt (float64 (default 0 .policy.warm_replicas)) 0.0) }}{{ fail (printf "pools.%s: warm_replicas of its scaling policy needs pools.%s.standby: true and standby = true in actuators.%s" .pool .pool .actuator.name) }}{{ end -}}
{{- if ne $standby .actuator.standby }}{{ fail (printf "pools.%s: standby is %t here and %t in actuators.%s of autoscaler.policies" .pool $standby .actuator.standby .actuator.name) }}{{ end -}}
{{- if not .policy.gpu_types }}{{ fail (printf "pools.%s: its scaling policy needs gpu_types, since each variant has a gpuType" .pool) }}{{ end -}}
{{- $isKeda := eq .actuator.kind "keda" -}}
{{- $zones := list "" -}}
{{- if and .policy.zones (or $isKeda .actuator.perZone) }}{{ $zones = .policy.zones }}{{ end -}}
{{- $share := float64 (default 0 .policy.spot_share) -}}
{{- range $type := .policy.gpu_types -}}
{{- $spots := list false -}}
{{- if and (gt $share 0.0) (hasKey (default dict (get (default dict $.file.gpu_types) $type)) "spot_cost_per_hour") }}{{ $spots = list false true }}{{ end -}}
{{- range $spot := $spots -}}
{{- range $zone := $zones -}}
{{- $fits := false -}}
{{- range $variant := $.spec.variants -}}
{{- $own := default "" $variant.zone -}}
{{- if and (eq $variant.gpuType $type) (eq (default false $variant.spot) $spot) (or (eq $own $zone) (and $isKeda (not $own))) }}{{ $fits = true }}{{ end -}}
{{- end -}}
{{- if not $fits }}{{ fail (printf "pools.%s: its scaling policy may order a replica that no variant has: gpuType %s, spot %t, zone %q" $.pool $type $spot $zone) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
Pools and roles (by their keys in the values) that have a scaling policy, as JSON; none without an autoscaler.
`usesKubernetes`: the autoscaler calls the API server.
*/}}
{{- define "millrace.scaling" -}}
{{- $pools := dict -}}
{{- $roles := dict -}}
{{- $usesKubernetes := false -}}
{{- if .Values.autoscaler.enabled -}}
{{- $file := include "millrace.scaling.file" . | fromJson -}}
{{- range default dict $file.actuators }}{{ if eq .kind "kubernetes" }}{{ $usesKubernetes = true }}{{ end }}{{ end -}}
{{- range $pool, $spec := .Values.pools -}}
{{- $policy := include "millrace.scaling.policy" (dict "file" $file "pool" $pool) | fromJson -}}
{{- $actuator := include "millrace.scaling.actuator" (dict "root" $ "file" $file "policy" $policy "where" (printf "pools.%s" $pool)) | fromJson -}}
{{- if has $actuator.kind (list "kubernetes" "keda") }}{{ include "millrace.scaling.check" (dict "pool" $pool "spec" $spec "file" $file "policy" $policy "actuator" $actuator) }}{{ end -}}
{{- $most := default 10 $policy.replicas_max -}}
{{- range $policy.schedule }}{{ $most = max $most (default 0 .replicas_max) }}{{ end -}}
{{- $_ := set $pools $pool (merge (dict "most" $most) $actuator) -}}
{{- end -}}
{{- $keys := dict "api" "api" "intake" "intake" "batcher" "batcherBulk" "results-writer" "resultsWriter" -}}
{{- range $role, $policy := default dict $file.roles -}}
{{- if hasKey $keys $role -}}
{{- $actuator := include "millrace.scaling.actuator" (dict "root" $ "file" $file "policy" $policy "where" (printf "roles.%s" $role)) | fromJson -}}
{{- $_ := set $roles (get $keys $role) (merge (dict "role" $role "fewest" (default 1 $policy.replicas_min) "most" (default 4 $policy.replicas_max)) $actuator) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "pools" $pools "roles" $roles "usesKubernetes" $usesKubernetes) -}}
{{- end }}

{{/*
The field `replicas` of a Deployment: root, name, replicas, keep (another scaler changes the number).
A number that runs is kept. It is left out where another manager owns the field and Helm applies on
the server: what is read here may be old when it is applied, after the migration, and then be in
conflict. Where Helm alone owns the field, or merges as Helm 3 did, leaving it out would set it to 1.
*/}}
{{- define "millrace.replicas" -}}
{{- $replicas := .replicas -}}
{{- $isApplied := false -}}
{{- $isShared := false -}}
{{- if .keep -}}
{{- with lookup "apps/v1" "Deployment" .root.Release.Namespace .name -}}
{{- $replicas = .spec.replicas -}}
{{- range .metadata.managedFields -}}
{{- $isHelm := hasPrefix "helm" .manager -}}
{{- if and $isHelm (eq .operation "Apply") }}{{ $isApplied = true }}{{ end -}}
{{- if and (not $isHelm) (kindIs "map" (dig "f:spec" "f:replicas" "" .fieldsV1)) }}{{ $isShared = true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not (and $isApplied $isShared) }}replicas: {{ int $replicas }}{{ end -}}
{{- end }}

{{/* A ScaledObject: root, name, component, labels, target (metadata of the trigger), fewest, most. */}}
{{- define "millrace.scaledObject" -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  {{- include "millrace.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {name: {{ .name }}}
  pollingInterval: 5
  cooldownPeriod: 1
  minReplicaCount: {{ int .fewest }}
  maxReplicaCount: {{ int .most }}
  advanced:
    restoreToOriginalReplicaCount: false
    horizontalPodAutoscalerConfig:
      # The autoscaler decides: the HPA adds no delay, no step and no dead band of its own.
      behavior:
        {{- $tolerance := .root.Values.autoscaler.keda.tolerance }}
        scaleUp:
          stabilizationWindowSeconds: 0
          {{- if $tolerance }}
          tolerance: "0"
          {{- end }}
          selectPolicy: Max
          policies: [{type: Percent, value: 100, periodSeconds: 1}, {type: Pods, value: 100, periodSeconds: 1}]
        scaleDown:
          stabilizationWindowSeconds: 0
          {{- if $tolerance }}
          tolerance: "0"
          {{- end }}
          selectPolicy: Max
          policies: [{type: Percent, value: 100, periodSeconds: 1}]
  triggers:
    - type: external-push
      metricType: AverageValue
      metadata:
        scalerAddress: {{ include "millrace.fullname" .root }}-autoscaler.{{ .root.Release.Namespace }}.svc:{{ .root.Values.autoscaler.keda.port }}
        {{- toYaml .target | nindent 8 }}
{{- end }}
