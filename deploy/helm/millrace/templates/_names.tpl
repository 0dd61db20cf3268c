{{- define "millrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* First part of every name; `release` of the actuator `kubernetes`. */}}
{{- define "millrace.fullname" -}}
{{- $name := printf "%s-%s" .Release.Name (include "millrace.name" .) -}}
{{- if contains (include "millrace.name" .) .Release.Name }}{{ $name = .Release.Name }}{{ end -}}
{{- $name = default $name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $name) }}{{ fail (printf "the name %s of a Service begins with a letter and has no dot: set fullnameOverride" $name) }}{{ end -}}
{{- $name -}}
{{- end }}

{{/* A role's name as `millrace run` takes it, from its key in the values. */}}
{{- define "millrace.component" -}}
{{- kebabcase . -}}
{{- end }}

{{- define "millrace.selector" -}}
app.kubernetes.io/name: {{ include "millrace.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "millrace.labels" -}}
{{ include "millrace.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{/* Labels of pods: without versions, which would replace pods that are the same but for them. */}}
{{- define "millrace.podLabels" -}}
{{ include "millrace.selector" . }}
{{- with .root.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
metadata of an object: root, component; suffix of the name or the whole `name`, further `labels` and
`annotations` (maps), whether it is `clusterScoped`.
*/}}
{{- define "millrace.metadata" -}}
{{- $name := include "millrace.fullname" .root -}}
{{- with .suffix }}{{ $name = printf "%s-%s" $name . }}{{ end -}}
name: {{ default $name .name | quote }}
{{- if not .clusterScoped }}
namespace: {{ .root.Release.Namespace | quote }}
{{- end }}
labels:
  {{- mustMergeOverwrite (dict) (include "millrace.labels" . | fromYaml) (default dict .labels) | toYaml | nindent 2 }}
{{- with mustMergeOverwrite (dict) .root.Values.annotations (default dict .annotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Of the whole cluster, so with the namespace: releases of one name in two namespaces are two. */}}
{{- define "millrace.clusterName" -}}
{{- printf "%s-%s-%s" .root.Release.Namespace (include "millrace.fullname" .root) .suffix -}}
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
