{{- define "toolgate.name" -}}
{{- if contains "toolgate" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-toolgate" (.Release.Name | trunc 40 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "toolgate.selector" -}}
app.kubernetes.io/name: toolgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: replica
{{- end }}

{{- define "toolgate.labels" -}}
{{ include "toolgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "toolgate.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "toolgate.host" -}}
{{ include "toolgate.name" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "toolgate.url" -}}
{{ if .Values.tls.secretName }}https{{ else }}http{{ end }}://{{ include "toolgate.host" . }}:{{ .Values.service.port }}
{{- end }}

{{/* The environment of a client of the service, with the token of a key. */}}
{{- define "toolgate.client" -}}
- name: TOOLGATE_URL
  value: {{ include "toolgate.url" .root }}
- name: TOOLGATE_TOKEN
  valueFrom: { secretKeyRef: { name: {{ .root.Values.secretName }}, key: {{ .key }} } }
{{- if and .root.Values.tls.secretName .root.Values.tls.ca }}
- name: TOOLGATE_CA
  value: /run/secrets/tls/ca.crt
{{- end }}
{{- end }}

{{/* The authority for clients of the service: a volume, and its mount. */}}
{{- define "toolgate.caVolume" -}}
- name: ca
  secret: { secretName: {{ .Values.tls.secretName }}, items: [{ key: ca.crt, path: ca.crt }] }
{{- end }}
{{- define "toolgate.caMount" -}}
- { name: ca, mountPath: /run/secrets/tls, readOnly: true }
{{- end }}

{{- define "toolgate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
{{- end }}

{{/* Of a container that starts no sandbox. */}}
{{- define "toolgate.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "toolgate.config" -}}
{{- $name := include "toolgate.name" . -}}
{{- $inCluster := list $name (printf "%s.%s" $name .Release.Namespace) (include "toolgate.host" .) (printf "%s.cluster.local" (include "toolgate.host" .)) -}}
hosts = {{ concat $inCluster .Values.hosts | toJson }}
{{ .Values.config }}
{{- range .Values.tokens }}

[[token]]
id = {{ .id | quote }}
roles = {{ .roles | toJson }}
{{- with .agents }}
agents = {{ . | toJson }}
{{- end }}
{{- with .workspaces }}
workspaces = {{ . | toJson }}
{{- end }}
file = {{ printf "/run/secrets/toolgate/%s" .key | quote }}
{{- end }}
{{- range .Values.workers }}

[[token]]
id = {{ printf "worker-%s" .name | quote }}
roles = ["worker"]
tools = {{ .tools | toJson }}
{{- with .permissions }}
permissions = {{ . | toJson }}
{{- end }}
file = {{ printf "/run/secrets/toolgate/%s" .key | quote }}
{{- end }}
{{- end }}
