{{/*
Each template here takes a dict of root (the release's scope) and values (this chart's
values), so that a chart that has this one as a dependency can include it, too.
*/}}

{{- define "wirefence.name" -}}
{{- default "wirefence" .values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "wirefence.fullname" -}}
{{- if .values.fullnameOverride }}
{{- .values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "wirefence.name" .) .root.Release.Name }}
{{- .root.Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .root.Release.Name (include "wirefence.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "wirefence.selector" -}}
app.kubernetes.io/name: {{ include "wirefence.name" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "wirefence.labels" -}}
{{ include "wirefence.selector" . }}
app.kubernetes.io/version: {{ .values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "wirefence.image" -}}
{{- if .values.image.digest }}
{{- printf "%s@%s" .values.image.repository .values.image.digest }}
{{- else }}
{{- printf "%s:%s" .values.image.repository .values.image.tag }}
{{- end }}
{{- end }}

{{/* Names of the secrets: an existing one, or the one that the chart makes. */}}

{{- define "wirefence.issuerSecret" -}}
{{- if not (or .values.issuer.existingSecret .values.issuer.url) }}
{{- fail "issuer.existingSecret is not set: name a secret with the issuer's connection string, or set issuer.url" }}
{{- end }}
{{- .values.issuer.existingSecret | default (printf "%s-issuer" (include "wirefence.fullname" .)) }}
{{- end }}

{{- define "wirefence.ownerSecret" -}}
{{- if not (or .values.migration.existingSecret .values.migration.url) }}
{{- fail "migration.existingSecret is not set: name a secret with the connection string of the schema's owner, set migration.url, or set migration.enabled to false" }}
{{- end }}
{{- .values.migration.existingSecret | default (printf "%s-owner" (include "wirefence.fullname" .)) }}
{{- end }}

{{/* Empty where leases are in PostgreSQL. */}}
{{- define "wirefence.redisSecret" -}}
{{- if .values.redis.existingSecret }}
{{- .values.redis.existingSecret }}
{{- else if .values.redis.url }}
{{- printf "%s-redis" (include "wirefence.fullname" .) }}
{{- end }}
{{- end }}

{{/* Empty where there are no tokens. */}}
{{- define "wirefence.tokensSecret" -}}
{{- if .values.adminTokens.existingSecret }}
{{- .values.adminTokens.existingSecret }}
{{- else if .values.adminTokens.tokens }}
{{- printf "%s-admin-tokens" (include "wirefence.fullname" .) }}
{{- else if and .values.api.enabled (eq .values.mode "standalone") }}
{{- fail "api.enabled needs tokens: set adminTokens.existingSecret or adminTokens.tokens" }}
{{- end }}
{{- end }}

{{- define "wirefence.tlsSecret" -}}
{{- .values.tls.secretName | default (printf "%s-tls" (include "wirefence.fullname" .)) }}
{{- end }}

{{- define "wirefence.adminTLSSecret" -}}
{{- if .values.adminTLS.secretName }}
{{- .values.adminTLS.secretName }}
{{- else if .values.tls.enabled }}
{{- include "wirefence.tlsSecret" . }}
{{- else }}
{{- fail "adminTLS.enabled needs a certificate: set adminTLS.secretName, or tls.enabled" }}
{{- end }}
{{- end }}
