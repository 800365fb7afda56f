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
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* What the operator calls, and nothing else. */}}
{{- define "posttrain.rules" -}}
- apiGroups: [posttrain.dev]
  resources: [posttrainjobs]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [posttrain.dev]
  resources: [posttrainjobs/status]
  verbs: [get, patch, update]
- apiGroups: [posttrain.dev]
  resources: [posttrainjobs/finalizers]   # owner references that block deletion
  verbs: [update]
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]   # preflight
  resources: [jobs]
  verbs: [get, create, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* What kopf needs to find out which kinds and namespaces there are. */}}
{{- define "posttrain.clusterReadRules" -}}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get, list, watch]
{{- end -}}
