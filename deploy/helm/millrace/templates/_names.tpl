{{- define "millrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* First part of every name; `release` of the actuator `kubernetes`. */}}
{{- define "millrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "millrace.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "millrace.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* A role's name as `millrace run` takes it, from its key in the values. */}}
{{- define "millrace.component" -}}
{{- kebabcase . -}}
{{- end }}

{{- define "millrace.selector" -}}
app.kubernetes.io/name: {{ include "millrace.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "millrace.labels" -}}
{{ include "millrace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* metadata of an object: root, suffix of the name, component. */}}
{{- define "millrace.metadata" -}}
name: {{ include "millrace.fullname" .root }}{{ with .suffix }}-{{ . }}{{ end }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "millrace.labels" . | nindent 2 }}
{{- with .root.Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "millrace.image" -}}
{{- $image := index .root.Values.image .which -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}

{{/* A name of a pool, type or zone as a part of an object's name. */}}
{{- define "millrace.part" -}}
{{- . | replace "." "-" | replace "_" "-" | trimSuffix "-" -}}
{{- end }}

{{/* The Deployment of a variant: {fullname}-{pool}-{gpuType}[-{zone}][-spot]. */}}
{{- define "millrace.variantName" -}}
{{- $parts := list (include "millrace.fullname" .root) (include "millrace.part" .pool) (include "millrace.part" .variant.gpuType) -}}
{{- if .variant.zone }}{{ $parts = append $parts (include "millrace.part" .variant.zone) }}{{ end -}}
{{- if .variant.spot }}{{ $parts = append $parts "spot" }}{{ end -}}
{{- $name := join "-" $parts -}}
{{- if gt (len $name) 63 }}{{ fail (printf "pools.%s: the name %s has more than 63 characters: set a shorter fullnameOverride" .pool $name) }}{{ end -}}
{{- $name -}}
{{- end }}
