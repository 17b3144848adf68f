{{- define "mmcached.labels" -}}
app.kubernetes.io/name: mmcached
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mmcached.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* All rings in MiB: the store, and with workers the ring of items. */}}
{{- define "mmcached.rings" -}}
{{- $ring := ternary .Values.ringGiB 0 (gt (int .Values.workers) 0) -}}
{{ mulf 1024 (addf .Values.storeGiB $ring) | ceil | int }}
{{- end }}

{{- /* The limit in MiB: rings with their tables (a sixteenth), and processes as docs/deploy/README.md counts them. */}}
{{- define "mmcached.memory" -}}
{{- $rings := int (include "mmcached.rings" .) -}}
{{- $workers := int .Values.workers -}}
{{- $processes := ternary (add 512 (mul 512 $workers)) 192 (gt $workers 0) -}}
{{ .Values.memoryMiB | default (add $rings (div $rings 16) $processes) }}
{{- end }}
