{{- define "wirefence.upstream" -}}
{{- $url := required "upstream.url is not set: where is the database? For example postgres://postgres:5432/?sslmode=disable" .values.upstream.url }}
{{- if and .values.upstream.caSecret (not (contains "sslrootcert=" $url)) }}
{{- $url = printf "%s%ssslrootcert=/etc/wirefence/upstream/ca.crt" $url (ternary "&" "?" (contains "?" $url)) }}
{{- end }}
{{- $url }}
{{- end }}

{{/* Nine tenths of a limit in Mi or Gi, of any other limit the whole. It takes the limit. */}}
{{- define "wirefence.goMemLimit" -}}
{{- if hasSuffix "Mi" . }}
{{- printf "%dMiB" (div (mul (trimSuffix "Mi" . | int) 9) 10) }}
{{- else if hasSuffix "Gi" . }}
{{- printf "%dMiB" (div (mul (trimSuffix "Gi" . | int) 9216) 10) }}
{{- end }}
{{- end }}

{{/* A setting's value as text. Numbers of a file are floating, and 16777216 is no 1.6777216e+07. */}}
{{- define "wirefence.setting" -}}
{{- kindIs "string" . | ternary . (toJson .) }}
{{- end }}

{{/* The environment of a proxy. With lease it is a sidecar. */}}
{{- define "wirefence.env" -}}
{{- $sidecar := ne .values.mode "standalone" }}
- name: WIREFENCE_LISTEN
  value: {{ ternary "127.0.0.1:6433" "0.0.0.0:6433" $sidecar }}
# The kubelet probes the pod's address, so loopback won't do.
- name: WIREFENCE_ADMIN_LISTEN
  value: 0.0.0.0:9433
{{- if .values.api.enabled }}
- name: WIREFENCE_API_LISTEN
  value: {{ printf "%s:%v" (ternary "127.0.0.1" "0.0.0.0" $sidecar) .values.api.port }}
{{- end }}
{{- if include "wirefence.tokensSecret" . }}
- name: WIREFENCE_ADMIN_TOKEN_FILE
  value: /etc/wirefence/admin/tokens
{{- end }}
- name: WIREFENCE_UPSTREAM
  value: {{ include "wirefence.upstream" . | quote }}
- name: WIREFENCE_DATABASE_URL_FILE
  value: /etc/wirefence/issuer/database-url
{{- if include "wirefence.redisSecret" . }}
- name: WIREFENCE_REDIS_URL_FILE
  value: /etc/wirefence/redis/redis-url
{{- end }}
- name: WIREFENCE_MODE
  value: {{ .values.enforcement }}
{{- if .lease }}
- name: WIREFENCE_LEASE
  value: {{ .lease | quote }}
- name: WIREFENCE_STANDBY
  value: {{ .standby | default .values.sidecar.standby }}
{{- end }}
{{- if .values.tls.enabled }}
- name: WIREFENCE_TLS_CERT_FILE
  value: /etc/wirefence/tls/tls.crt
- name: WIREFENCE_TLS_KEY_FILE
  value: /etc/wirefence/tls/tls.key
- name: WIREFENCE_TLS_MODE
  value: {{ .values.tls.mode }}
- name: WIREFENCE_TLS_MIN_VERSION
  value: {{ .values.tls.minVersion | quote }}
{{- if .values.tls.clientCASecret }}
- name: WIREFENCE_TLS_CLIENT_CA_FILE
  value: /etc/wirefence/clients/ca.crt
- name: WIREFENCE_TLS_CLIENT_CERT
  value: {{ .values.tls.clientCert }}
{{- end }}
{{- end }}
{{- if .values.adminTLS.enabled }}
- name: WIREFENCE_ADMIN_TLS_CERT_FILE
  value: /etc/wirefence/admin-tls/tls.crt
- name: WIREFENCE_ADMIN_TLS_KEY_FILE
  value: /etc/wirefence/admin-tls/tls.key
{{- end }}
{{- if .values.auth.existingSecret }}
- name: WIREFENCE_AUTH_FILE
  value: /etc/wirefence/auth/users
{{- end }}
{{- if not (or $sidecar (semverCompare ">=1.30.0-0" .root.Capabilities.KubeVersion.Version)) }}
# Before 1.30 Kubernetes has no preStop sleep.
- name: WIREFENCE_DRAIN_GRACE
  value: {{ printf "%vs" .values.drainSeconds }}
{{- end }}
{{- $limit := dig "limits" "memory" "" (ternary .values.sidecar.resources .values.resources $sidecar) | toString }}
{{- with .values.goMemLimit | default (include "wirefence.goMemLimit" $limit) }}
- name: GOMEMLIMIT
  value: {{ . | quote }}
{{- end }}
{{- range $name, $value := .values.settings }}
- name: {{ $name }}
  value: {{ include "wirefence.setting" $value | quote }}
{{- end }}
{{- with .values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What a proxy's container has besides its name: for a Deployment's, and for a sidecar. */}}
{{- define "wirefence.container" -}}
{{- $scheme := ternary "HTTPS" "HTTP" .values.adminTLS.enabled -}}
{{- $sidecar := ne .values.mode "standalone" -}}
image: {{ include "wirefence.image" . }}
imagePullPolicy: {{ .values.image.pullPolicy }}
args: ["proxy"]
env:
  {{- include "wirefence.env" . | nindent 2 }}
ports:
  {{- if not $sidecar }}
  - name: postgres
    containerPort: 6433
  {{- if .values.api.enabled }}
  - name: api
    containerPort: {{ .values.api.port }}
  {{- end }}
  {{- end }}
  - name: admin
    containerPort: 9433
startupProbe:
  httpGet: {path: /readyz, port: admin, scheme: {{ $scheme }}}
  {{- toYaml .values.probes.startup | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: admin, scheme: {{ $scheme }}}
  {{- toYaml .values.probes.readiness | nindent 2 }}
# Says only that the process answers: a database that is away must not restart the proxy.
livenessProbe:
  httpGet: {path: /livez, port: admin, scheme: {{ $scheme }}}
  {{- toYaml .values.probes.liveness | nindent 2 }}
{{- if and (not $sidecar) (semverCompare ">=1.30.0-0" .root.Capabilities.KubeVersion.Version) }}
lifecycle:
  preStop:
    sleep:
      seconds: {{ .values.drainSeconds }}
{{- end }}
resources:
  {{- toYaml (ternary .values.sidecar.resources .values.resources $sidecar) | nindent 2 }}
securityContext:
  {{- toYaml .values.securityContext | nindent 2 }}
volumeMounts:
  - name: wirefence
    mountPath: /etc/wirefence
    readOnly: true
  {{- with .values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* One item of an optional volume source: takes secret, key and path. */}}
{{- define "wirefence.source" -}}
- secret:
    name: {{ .secret }}
    items:
      {{- range $key, $path := .items }}
      - key: {{ $key }}
        path: {{ $path }}
      {{- end }}
{{- end }}

{{/* The volumes of a pod with a proxy. Kubernetes updates their files where secrets change. */}}
{{- define "wirefence.volumes" -}}
- name: wirefence
  projected:
    sources:
      {{- include "wirefence.source" (dict "secret" (include "wirefence.issuerSecret" .) "items" (dict .values.issuer.key "issuer/database-url")) | nindent 6 }}
      {{- with include "wirefence.redisSecret" . }}
      {{- include "wirefence.source" (dict "secret" . "items" (dict $.values.redis.key "redis/redis-url")) | nindent 6 }}
      {{- end }}
      {{- with include "wirefence.tokensSecret" . }}
      {{- include "wirefence.source" (dict "secret" . "items" (dict $.values.adminTokens.key "admin/tokens")) | nindent 6 }}
      {{- end }}
      {{- with .values.upstream.caSecret }}
      {{- include "wirefence.source" (dict "secret" . "items" (dict $.values.upstream.caKey "upstream/ca.crt")) | nindent 6 }}
      {{- end }}
      {{- if .values.tls.enabled }}
      {{- include "wirefence.source" (dict "secret" (include "wirefence.tlsSecret" .) "items" (dict "tls.crt" "tls/tls.crt" "tls.key" "tls/tls.key")) | nindent 6 }}
      {{- with .values.tls.clientCASecret }}
      {{- include "wirefence.source" (dict "secret" . "items" (dict $.values.tls.clientCAKey "clients/ca.crt")) | nindent 6 }}
      {{- end }}
      {{- end }}
      {{- if .values.adminTLS.enabled }}
      {{- include "wirefence.source" (dict "secret" (include "wirefence.adminTLSSecret" .) "items" (dict "tls.crt" "admin-tls/tls.crt" "tls.key" "admin-tls/tls.key")) | nindent 6 }}
      {{- end }}
      {{- with .values.auth.existingSecret }}
      {{- include "wirefence.source" (dict "secret" . "items" (dict $.values.auth.key "auth/users")) | nindent 6 }}
      {{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
A native sidecar that holds a lease for the other containers of its pod:

  initContainers:
    {{- include "wirefence.sidecar" (dict "root" . "values" .Values.wirefence "lease" "reports") | nindent 4 }}
  volumes:
    {{- include "wirefence.volumes" (dict "root" . "values" .Values.wirefence) | nindent 4 }}

Without lease it is a sidecar for applications that carry fences of their own. standby is
sidecar.standby if it isn't given.
*/}}
{{- define "wirefence.sidecar" -}}
{{- if ne .values.mode "sidecar" }}
{{- fail "wirefence.sidecar needs mode: sidecar in the values of wirefence" }}
{{- end -}}
- name: wirefence
  # This makes it a sidecar: it starts before the other containers and ends after them.
  restartPolicy: Always
  {{- include "wirefence.container" . | nindent 2 }}
{{- end }}
