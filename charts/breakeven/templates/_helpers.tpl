{{- define "breakeven.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "breakeven.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "breakeven.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "breakeven.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "breakeven.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "breakeven.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The user name of the operator's ServiceAccount, as the API server knows it. */}}
{{- define "breakeven.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "breakeven.serviceAccountName" . }}
{{- end -}}

{{/* Roles of two installs must not collide: cluster-scoped names carry the namespace unless it is the usual one. */}}
{{- define "breakeven.clusterName" -}}
{{- if eq .Release.Namespace (include "breakeven.fullname" .) -}}
{{- include "breakeven.fullname" . -}}
{{- else -}}
{{- printf "%s-%s" .Release.Namespace (include "breakeven.fullname" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "breakeven.trialRole" -}}
{{- printf "%s-trial" (include "breakeven.clusterName" .) -}}
{{- end -}}

{{- define "breakeven.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "breakeven.selectorLabels" -}}
app.kubernetes.io/name: {{ include "breakeven.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "breakeven.labels" -}}
{{ include "breakeven.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/*
The alert and recording rules of files/rules.yaml with this release's delays, severities, labels and links, and where they are
wanted the sums of files/recording-rules.yaml. Each file itself is valid for Prometheus as it is: that is what promtool tests, and what users without Helm load.
*/}}
{{- define "breakeven.rules" -}}
{{- $values := .Values.alerts -}}
{{- $known := dict -}}
{{- $groups := list -}}
{{- range $group := (.Files.Get "files/rules.yaml" | fromYaml).groups -}}
{{- $rules := list -}}
{{- range $rule := $group.rules -}}
{{- if $rule.alert -}}
{{- $_ := set $known $rule.alert true -}}
{{- $change := default dict (index $values.rules $rule.alert) -}}
{{- if ne $change.enabled false -}}
{{- if $change.for -}}{{- $_ := set $rule "for" $change.for -}}{{- end -}}
{{- $labels := merge (dict) $values.labels $rule.labels -}}
{{- if $change.severity -}}{{- $_ := set $labels "severity" $change.severity -}}{{- end -}}
{{- $_ := set $rule "labels" $labels -}}
{{- $_ := set $rule.annotations "runbook_url" (printf "%s%s.md" $values.runbookUrlPrefix $rule.alert) -}}
{{- if $values.dashboardUrl -}}{{- $_ := set $rule.annotations "dashboard_url" $values.dashboardUrl -}}{{- end -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- else -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- end -}}
{{- $groups = append $groups (dict "name" $group.name "rules" $rules) -}}
{{- end -}}
{{- range $alert := keys $values.rules -}}
{{- if not (hasKey $known $alert) -}}
{{- fail (printf "alerts.rules.%s: no such alert; known: %s" $alert (keys $known | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- if (.Values.recordingRules).enabled -}}
{{- range $group := (.Files.Get "files/recording-rules.yaml" | fromYaml).groups -}}
{{- $groups = append $groups (set $group "interval" (default $group.interval $.Values.recordingRules.interval)) -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "groups" $groups) -}}
{{- end -}}
