{{- define "posttrain.labels" -}}
app.kubernetes.io/name: posttrain
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "posttrain.selector" -}}
app.kubernetes.io/name: posttrain
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "posttrain.image" -}}
{{- $tag := printf ":%s" (.Values.image.tag | default .Chart.AppVersion) -}}
{{- $digest := printf "@%s" .Values.image.digest -}}
{{- include "posttrain.pulled" (dict "root" . "image" (print .Values.image.repository (ternary $digest $tag (ne .Values.image.digest "")))) -}}
{{- end -}}

{{/* An image as it is pulled: from global.imageRegistry, if that is named, in place of the image's own registry. */}}
{{- define "posttrain.pulled" -}}
{{- $registry := (.root.Values.global).imageRegistry | default "" | trimSuffix "/" -}}
{{- $first := first (splitList "/" .image) -}}
{{- if or (not $registry) (hasPrefix (print $registry "/") .image) -}}
{{ .image }}
{{- else if and (contains "/" .image) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) -}}
{{ $registry }}{{ trimPrefix $first .image }}
{{- else -}}
{{ $registry }}/{{ .image }}
{{- end -}}
{{- end -}}
