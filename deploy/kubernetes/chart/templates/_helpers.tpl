{{/*
What the templates share. Definition and rights are taken from files/manager.yaml, which is what `ronde kube install
--print` prints, so that they cannot differ from it.
*/}}

{{/* An object of files/manager.yaml, by its kind: include "ronde.object" (list . "Role") */}}
{{- define "ronde.object" -}}
{{- $root := index . 0 -}}
{{- $line := printf "\nkind: %s\n" (index . 1) -}}
{{- range $text := splitList "\n---\n" ($root.Files.Get "files/manager.yaml") -}}
{{- if contains $line (printf "\n%s" $text) -}}{{- $text -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ronde.labels" -}}
app.kubernetes.io/name: ronde-manager
{{- end -}}

{{- define "ronde.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Who the rights are given to. */}}
{{- define "ronde.subjects" -}}
- kind: ServiceAccount
  name: {{ .Values.serviceAccount.name }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
