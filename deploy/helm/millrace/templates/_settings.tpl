{{/* Settings of Kafka: root, user (a key of secrets.kafka). */}}
{{- define "millrace.env.kafka" -}}
{{- $kafka := .root.Values.kafka -}}
{{- if gt (int $kafka.minInsyncReplicas) (int $kafka.replicationFactor) }}{{ fail "kafka: minInsyncReplicas is above replicationFactor" }}{{ end -}}
- {name: MILLRACE_KAFKA_BOOTSTRAP_SERVERS, value: {{ $kafka.bootstrapServers | quote }}}
{{- with $kafka.topicPrefix }}
- {name: MILLRACE_KAFKA_TOPIC_PREFIX, value: {{ . | quote }}}
{{- end }}
- {name: MILLRACE_KAFKA_REPLICATION_FACTOR, value: {{ $kafka.replicationFactor | quote }}}
- {name: MILLRACE_KAFKA_MIN_INSYNC_REPLICAS, value: {{ $kafka.minInsyncReplicas | quote }}}
- {name: MILLRACE_KAFKA_GROUP_PROTOCOL, value: {{ $kafka.groupProtocol }}}
- {name: MILLRACE_KAFKA_SECURITY_PROTOCOL, value: {{ $kafka.securityProtocol }}}
{{- if hasPrefix "SASL_" $kafka.securityProtocol }}
{{- $secret := index .root.Values.secrets.kafka .user }}
- {name: MILLRACE_KAFKA_SASL_MECHANISM, value: {{ $kafka.saslMechanism }}}
- name: MILLRACE_KAFKA_SASL_USERNAME
  valueFrom: {secretKeyRef: {name: {{ $secret.name | quote }}, key: {{ $secret.usernameKey | quote }}}}
- name: MILLRACE_KAFKA_SASL_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $secret.name | quote }}, key: {{ $secret.passwordKey | quote }}}}
{{- end }}
{{- if $kafka.caSecret.name }}
- {name: MILLRACE_KAFKA_SSL_CA_LOCATION, value: /etc/millrace/kafka-ca/ca.crt}
{{- end }}
{{- end }}

{{/* The user of Postgres: root, user (a key of secrets.database). */}}
{{- define "millrace.env.database" -}}
{{- $secret := index .root.Values.secrets.database .user -}}
- name: MILLRACE_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ $secret.name | quote }}, key: {{ $secret.key | quote }}}}
{{- end }}

{{- define "millrace.env.objects" -}}
{{- $store := .root.Values.objectStore -}}
- {name: MILLRACE_OBJECTS_KIND, value: s3}
- {name: MILLRACE_S3_BUCKET, value: {{ $store.bucket | quote }}}
{{- with $store.endpointUrl }}
- {name: MILLRACE_S3_ENDPOINT_URL, value: {{ . | quote }}}
{{- end }}
- {name: MILLRACE_S3_REGION, value: {{ $store.region | quote }}}
{{- with .root.Values.secrets.objectStore }}
{{- if .name }}
- name: MILLRACE_S3_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .accessKeyKey | quote }}}}
- name: MILLRACE_S3_SECRET_KEY
  valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .secretKeyKey | quote }}}}
{{- end }}
{{- end }}
{{- end }}

{{- define "millrace.env.webhooks" -}}
- name: MILLRACE_WEBHOOKS_SECRET_KEY
  valueFrom: {secretKeyRef: {name: {{ .root.Values.secrets.webhooks.name | quote }}, key: {{ .root.Values.secrets.webhooks.key | quote }}}}
{{- end }}

{{/* Further settings and secrets that the values name for a role or pool. */}}
{{- define "millrace.env.further" -}}
{{- range $name, $value := .env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- range .secretEnv }}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .secretName | quote }}, key: {{ .key | quote }}}}
{{- end }}
{{- end }}

{{/* What a role reads, the setting of its stop, and the seconds that a stop takes beyond it. */}}
{{- define "millrace.roles" -}}
api: {kafka: api, database: api, objects: true, webhooks: true, prefix: API, stop: MILLRACE_API_SHUTDOWN_GRACE_S, rest: 6}
intake: {kafka: intake, database: intake, objects: true, prefix: INTAKE, rest: 0}
batcherBulk: {kafka: batcher, database: batcher, prefix: BATCHER, stop: MILLRACE_BATCHER_STOP_TIMEOUT_S, rest: 0, run: batcher, jobClass: bulk}
batcherInteractive: {kafka: batcher, database: batcher, prefix: BATCHER, stop: MILLRACE_BATCHER_STOP_TIMEOUT_S, rest: 0, run: batcher, jobClass: interactive}
resultsWriter: {kafka: resultsWriter, database: resultsWriter, prefix: WRITER, rest: 0}
finaliser: {database: finaliser, objects: true, prefix: FINALISER, stop: MILLRACE_FINALISER_STOP_GRACE_S, rest: 0}
webhooks: {kafka: webhooks, database: webhooks, webhooks: true, prefix: WEBHOOKS, stop: MILLRACE_WEBHOOKS_STOP_GRACE_S, rest: 0}
autoscaler: {kafka: autoscaler, prefix: AUTOSCALER, rest: 0}
{{- end }}

{{/* Fails where the values set a variable that the chart sets: Kubernetes applies none of two. env, where. */}}
{{- define "millrace.env.check" -}}
{{- $seen := dict -}}
{{- range .env | fromYamlArray -}}
{{- if hasKey $seen .name }}{{ fail (printf "%s: %s is set twice: the chart sets it, or env and secretEnv do" $.where .name) }}{{ end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- end }}

{{/* All settings of a role: root, key, kind, role. */}}
{{- define "millrace.env.role" }}
{{- if $.kind.kafka }}
{{- include "millrace.env.kafka" (dict "root" $.root "user" $.kind.kafka) | nindent 0 }}
- {name: MILLRACE_KAFKA_MEMBERS_FOLDER, value: /var/lib/millrace/members}
{{- end }}
{{- if $.kind.database }}
{{- include "millrace.env.database" (dict "root" $.root "user" $.kind.database) | nindent 0 }}
{{- end }}
{{- if $.kind.objects }}
{{- include "millrace.env.objects" $ | nindent 0 }}
{{- end }}
{{- if $.kind.webhooks }}
{{- include "millrace.env.webhooks" $ | nindent 0 }}
{{- end }}
{{- with $.kind.jobClass }}
- {name: MILLRACE_BATCHER_JOB_CLASS, value: {{ . }}}
{{- end }}
{{- if eq $.key "api" }}
- {name: MILLRACE_API_HOST, value: "0.0.0.0"}
- {name: MILLRACE_API_PORT, value: "8000"}
{{- with $.root.Values.api.publicUrl }}
- {name: MILLRACE_API_PUBLIC_URL, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- if eq $.key "autoscaler" }}
- {name: MILLRACE_AUTOSCALER_POLICY_FILE, value: /etc/millrace/policies/scaling.toml}
- {name: MILLRACE_AUTOSCALER_ACTUATOR, value: {{ $.root.Values.autoscaler.actuator | quote }}}
{{- if $.root.Values.autoscaler.keda.enabled }}
- {name: MILLRACE_KEDA_HOST, value: "0.0.0.0"}
- {name: MILLRACE_KEDA_GRPC_PORT, value: {{ $.root.Values.autoscaler.keda.port | quote }}}
{{- end }}
{{- end }}
{{- with $.kind.stop }}
- {name: {{ . }}, value: {{ $.role.shutdownGraceS | quote }}}
{{- end }}
- {name: MILLRACE_{{ $.kind.prefix }}_METRICS_HOST, value: "0.0.0.0"}
- {name: MILLRACE_{{ $.kind.prefix }}_METRICS_PORT, value: "9100"}
{{- include "millrace.env.further" $.role | nindent 0 }}
{{- end }}

{{/* All settings of a replica: root, pool, spec, variant, isVllm, grace. */}}
{{- define "millrace.env.pool" }}
{{- include "millrace.env.kafka" (dict "root" $.root "user" "gpuConsumer") | nindent 0 }}
- {name: MILLRACE_KAFKA_MEMBERS_FOLDER, value: /var/lib/millrace/members}
{{- include "millrace.env.objects" $ | nindent 0 }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: MILLRACE_HOST_ID
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- {name: MILLRACE_GPU_POOL, value: {{ $.pool | quote }}}
- {name: MILLRACE_GPU_TYPE, value: {{ $.variant.gpuType | quote }}}
{{- if $.variant.zone }}
- {name: MILLRACE_GPU_ZONE, value: {{ $.variant.zone | quote }}}
{{- else }}
# Kubernetes 1.35 copies the label of the node to the pod; before, the value is empty.
- name: MILLRACE_GPU_ZONE
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
{{- end }}
- {name: MILLRACE_GPU_SPOT, value: {{ default false $.variant.spot | quote }}}
{{- if $.spec.standby }}
# Out of the group until the autoscaler names the replica in `awake`.
- {name: MILLRACE_GPU_STANDBY, value: "true"}
{{- end }}
- {name: MILLRACE_GPU_JOB_CLASS, value: {{ default "both" $.spec.jobClass }}}
- {name: MILLRACE_GPU_SHUTDOWN_GRACE_S, value: {{ $.grace | quote }}}
- {name: MILLRACE_GPU_METRICS_HOST, value: "0.0.0.0"}
- {name: MILLRACE_GPU_METRICS_PORT, value: "9100"}
- {name: MILLRACE_ENGINE_KIND, value: {{ $.spec.engine.kind }}}
- {name: MILLRACE_ENGINE_MODEL_NAME, value: {{ $.spec.engine.modelName | quote }}}
{{- with $.spec.engine.modelVersion }}
- {name: MILLRACE_ENGINE_MODEL_VERSION, value: {{ . | quote }}}
{{- end }}
{{- if $.isVllm }}
- {name: MILLRACE_ENGINE_TRUSTED_KEYS, value: /etc/millrace/trusted-keys/keys.pem}
- {name: MILLRACE_ENGINE_WEIGHT_CACHE, value: /var/lib/millrace/weights/cache}
- {name: MILLRACE_ENGINE_WEIGHT_CACHE_GIB_MAX, value: {{ default 200 (default dict $.spec.weightCache).sizeGib | quote }}}
{{- end }}
{{- include "millrace.env.further" $.spec | nindent 0 }}
{{- end }}
