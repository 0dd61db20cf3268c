{{/* Settings of Kafka: root, user (a key of secrets.kafka). */}}
{{- define "millrace.env.kafka" -}}
{{- $kafka := .root.Values.kafka -}}
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
  valueFrom: {secretKeyRef: {name: {{ $secret.name }}, key: {{ $secret.usernameKey }}}}
- name: MILLRACE_KAFKA_SASL_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $secret.name }}, key: {{ $secret.passwordKey }}}}
{{- end }}
{{- if $kafka.caSecret.name }}
- {name: MILLRACE_KAFKA_SSL_CA_LOCATION, value: /etc/millrace/kafka-ca/ca.crt}
{{- end }}
{{- end }}

{{/* The user of Postgres: root, user (a key of secrets.database). */}}
{{- define "millrace.env.database" -}}
{{- $secret := index .root.Values.secrets.database .user -}}
- name: MILLRACE_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ $secret.name }}, key: {{ $secret.key }}}}
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
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .accessKeyKey }}}}
- name: MILLRACE_S3_SECRET_KEY
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .secretKeyKey }}}}
{{- end }}
{{- end }}
{{- end }}

{{- define "millrace.env.webhooks" -}}
- name: MILLRACE_WEBHOOKS_SECRET_KEY
  valueFrom: {secretKeyRef: {name: {{ .root.Values.secrets.webhooks.name }}, key: {{ .root.Values.secrets.webhooks.key }}}}
{{- end }}

{{/* Further settings and secrets that the values name for a role or pool. */}}
{{- define "millrace.env.further" -}}
{{- range $name, $value := .env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- range .secretEnv }}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .secretName }}, key: {{ .key }}}}
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
