{{- define "sparktxlog.fullname" -}}
{{- if contains "sparktxlog" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-sparktxlog" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "sparktxlog.selector" -}}
app.kubernetes.io/name: sparktxlog
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sparktxlog.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "sparktxlog.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "sparktxlog.scheme" -}}
{{ ternary "https" "http" (ne .Values.tls.existingSecret "") }}
{{- end }}

{{- define "sparktxlog.url" -}}
{{ .Values.node.url | default (printf "%s://%s-peers.%s.svc:7070" (include "sparktxlog.scheme" .) (include "sparktxlog.fullname" .) .Release.Namespace) }}
{{- end }}

{{- define "sparktxlog.secret" -}}
{{ .Values.secrets.existingSecret | default (include "sparktxlog.fullname" .) }}
{{- end }}

{{- define "sparktxlog.volumeMounts" -}}
- {name: data, mountPath: /var/lib/sparktxlog}
- {name: tmp, mountPath: /tmp}
- {name: secrets, mountPath: /etc/sparktxlog/secrets, readOnly: true}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/sparktxlog/tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "sparktxlog.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "sparktxlog.secretVolume" -}}
# The group of the pod reads them, and nobody else.
- name: secrets
  secret:
    secretName: {{ include "sparktxlog.secret" . }}
    defaultMode: 0440
{{- end }}

{{- define "sparktxlog.podSpec" -}}
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "sparktxlog.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "sparktxlog.image" -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end }}
{{- end }}
