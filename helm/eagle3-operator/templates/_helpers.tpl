{{- define "eagle3.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "eagle3.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "eagle3.ownLabels" -}}
{{ include "eagle3.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/*
All labels of one kind of object with further ones of its own: (list . .Values.podLabels). Of a key that stands in several
the chart's own label goes first, then the object's, then the common one.
*/}}
{{- define "eagle3.labelsWith" -}}
{{- $root := index . 0 -}}
{{- $further := index . 1 | default dict -}}
{{- merge (include "eagle3.ownLabels" $root | fromYaml) $further ($root.Values.commonLabels | default dict) | toYaml -}}
{{- end }}

{{- define "eagle3.labels" -}}
{{- include "eagle3.labelsWith" (list . dict) -}}
{{- end }}

{{- define "eagle3.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "eagle3.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* An image by its values: (list . .Values.image). */}}
{{- define "eagle3.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}
