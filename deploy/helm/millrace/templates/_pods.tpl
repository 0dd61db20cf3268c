{{/* Parts that the pods of roles, pools and the migration share. */}}
{{- define "millrace.pod.security" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
# With links the Service of the api would set MILLRACE_API_PORT, which is a setting of the role.
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "millrace.container.security" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/*
Placement: root, selector (rendered), nodeSelector, tolerations.
`Honor`: a node that the pod does not tolerate is no place that stays empty, which would hold all others.
*/}}
{{- define "millrace.placement" -}}
{{- $selector := deepCopy (default dict .nodeSelector) -}}
{{- with .root.Values.region }}{{ $_ := set $selector "topology.kubernetes.io/region" . }}{{ end -}}
{{- with $selector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - topologyKey: topology.kubernetes.io/zone
    maxSkew: 1
    whenUnsatisfiable: {{ .root.Values.spread.zones }}
    nodeTaintsPolicy: Honor
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- .selector | nindent 8 }}
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
    whenUnsatisfiable: {{ .root.Values.spread.nodes }}
    nodeTaintsPolicy: Honor
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- .selector | nindent 8 }}
{{- end }}

{{/* Startup decides how long a role may take to be ready; a slow start is never cut before that. */}}
{{- define "millrace.probes" -}}
startupProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (add (int .startTimeoutS) 4) 5 }}
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
livenessProbe:
  {{- if .livenessPath }}
  httpGet: {path: {{ .livenessPath }}, port: {{ .port }}}
  {{- else }}
  tcpSocket: {port: {{ .port }}}
  {{- end }}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{- end }}

{{- define "millrace.volumes" -}}
- name: tmp
  emptyDir: {}
- name: members
  emptyDir: {}
{{- with .root.Values.kafka.caSecret }}
{{- if .name }}
- name: kafka-ca
  secret: {secretName: {{ .name | quote }}, items: [{key: {{ .key | quote }}, path: ca.crt}]}
{{- end }}
{{- end }}
{{- end }}

{{- define "millrace.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: members, mountPath: /var/lib/millrace/members}
{{- if .root.Values.kafka.caSecret.name }}
- {name: kafka-ca, mountPath: /etc/millrace/kafka-ca, readOnly: true}
{{- end }}
{{- end }}

{{/* A rule of egress: to, ports. */}}
{{- define "millrace.egress" }}
- ports:
    {{- range .ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
