{{/*
A value as an expression of CEL, for a mutation of a MutatingAdmissionPolicy: takes value,
and path, the type that Kubernetes has for it there. Maps of other keys than fields
are literals.
*/}}
{{- define "wirefence.cel" -}}
{{- if kindIs "map" .value -}}
{{- $fields := list -}}
{{- range $name, $value := .value -}}
{{- $fields = append $fields (printf "%s: %s" $name (include "wirefence.cel" (dict "path" (printf "%s.%s" $.path $name) "value" $value))) -}}
{{- end -}}
{{- if has (splitList "." .path | last) (list "requests" "limits") -}}
{{- $fields = list -}}
{{- range $name, $value := .value -}}
{{- $fields = append $fields (printf "%s: %s" (include "wirefence.celString" $name) (include "wirefence.celString" ($value | toString))) -}}
{{- end -}}
{ {{- join ", " $fields -}} }
{{- else -}}
{{ .path }}{
{{ join ",\n" $fields | indent 2 }}
}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- $items := list -}}
{{- range .value -}}
{{- $items = append $items (include "wirefence.cel" (dict "path" $.path "value" .)) -}}
{{- end -}}
[{{ join ", " $items }}]
{{- else if kindIs "string" .value -}}
{{ include "wirefence.celString" .value }}
{{- else -}}
{{ toJson .value }}
{{- end -}}
{{- end }}

{{/* JSON's escapes are CEL's, too. */}}
{{- define "wirefence.celString" -}}
'{{ . | toJson | trimPrefix "\"" | trimSuffix "\"" | replace "'" "\\'" }}'
{{- end }}
