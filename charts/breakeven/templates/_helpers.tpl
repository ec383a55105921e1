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
The alert and recording rules of files/rules.yaml with this release's delays, severities, labels and links. The file itself is valid for Prometheus
as it is: that is what promtool tests, and what users without Helm load.
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
{{- toYaml (dict "groups" $groups) -}}
{{- end -}}

{{/* Environment of the operator's container, and of the pod of `helm test`. */}}
{{- define "breakeven.environment" -}}
- {name: BREAKEVEN_POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: BREAKEVEN_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: BREAKEVEN_BIND_ADDRESS, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: BREAKEVEN_PORT, value: {{ .Values.metrics.port | quote }}}
- {name: BREAKEVEN_PROBE_PORT, value: {{ .Values.operator.probePort | quote }}}
- {name: BREAKEVEN_WATCH_NAMESPACES, value: {{ join "," .Values.watchNamespaces | quote }}}
- {name: BREAKEVEN_CYCLE_SECONDS, value: {{ .Values.operator.cycleSeconds | quote }}}
- {name: BREAKEVEN_RELIST_SECONDS, value: {{ .Values.operator.relistSeconds | quote }}}
- {name: BREAKEVEN_STATUS_REFRESH_SECONDS, value: {{ .Values.operator.statusRefreshSeconds | quote }}}
- {name: BREAKEVEN_DRY_RUN, value: {{ .Values.operator.dryRun | quote }}}
- {name: BREAKEVEN_LOG_LEVEL, value: {{ .Values.operator.logLevel }}}
- {name: BREAKEVEN_LOG_FORMAT, value: {{ .Values.operator.logFormat }}}
- {name: BREAKEVEN_TIMING, value: {{ .Values.timing | toJson | quote }}}
- {name: BREAKEVEN_MAX_PARALLEL_ROLLS, value: {{ .Values.operator.maxParallelRolls | quote }}}
- {name: BREAKEVEN_MAX_PARALLEL_CALIBRATIONS, value: {{ .Values.calibration.maxParallel | quote }}}
{{- if .Values.operator.watchAnnotated }}
- {name: BREAKEVEN_WATCH_ANNOTATED, value: "true"}
- {name: BREAKEVEN_MOST_WATCHED, value: {{ .Values.operator.mostWatched | quote }}}
- {name: BREAKEVEN_MOST_WATCHED_PER_NAMESPACE, value: {{ .Values.operator.mostWatchedPerNamespace | quote }}}
- {name: BREAKEVEN_DEFAULT_CANDIDATES, value: {{ .Values.operator.defaultCandidates | toJson | quote }}}
{{- end }}
- {name: BREAKEVEN_LEASE_NAME, value: {{ include "breakeven.fullname" . }}}
- {name: BREAKEVEN_PROMETHEUS_ADDRESS, value: {{ .Values.prometheus.address | quote }}}
- {name: BREAKEVEN_PROMETHEUS_TIMEOUT_SECONDS, value: {{ .Values.prometheus.timeoutSeconds | quote }}}
- {name: BREAKEVEN_PROMETHEUS_LABEL_NAMES, value: {{ printf "namespace=%s,pod=%s" .Values.prometheus.labelNames.namespace .Values.prometheus.labelNames.pod | quote }}}
- {name: BREAKEVEN_PROMETHEUS_ALLOWED_ADDRESSES, value: {{ join "," .Values.prometheus.allowedAddresses | quote }}}
{{- with .Values.prometheus.bearerTokenKey }}
- {name: BREAKEVEN_PROMETHEUS_BEARER_FILE, value: /etc/breakeven/prometheus/{{ . }}}
{{- end }}
{{- with .Values.prometheus.caKey }}
- {name: BREAKEVEN_PROMETHEUS_CA_FILE, value: /etc/breakeven/prometheus/{{ . }}}
{{- end }}
- {name: BREAKEVEN_TRIAL_IMAGE, value: {{ include "breakeven.image" . | quote }}}
- {name: BREAKEVEN_TRIAL_IMAGE_PULL_POLICY, value: {{ .Values.image.pullPolicy }}}
- {name: BREAKEVEN_TRIAL_CLUSTER_ROLE, value: {{ include "breakeven.trialRole" . }}}
- {name: BREAKEVEN_TRIAL_PRIORITY_CLASS, value: {{ .Values.calibration.priorityClass.name | quote }}}
- {name: BREAKEVEN_TRIAL_QUEUE_NAME, value: {{ .Values.calibration.queueName | quote }}}
- {name: BREAKEVEN_TRIAL_LONGEST_SECONDS, value: {{ .Values.calibration.maxDurationSeconds | quote }}}
- {name: BREAKEVEN_TRIAL_TTL_SECONDS, value: {{ .Values.calibration.jobTtlSeconds | quote }}}
- {name: BREAKEVEN_ALLOWED_DRAFTERS, value: {{ join "," .Values.calibration.allowedDrafters | quote }}}
- {name: BREAKEVEN_GPU_LABEL, value: {{ .Values.calibration.gpuLabel | quote }}}
{{- with .Values.board }}
{{- if .enabled }}
- {name: BREAKEVEN_BOARD_PORT, value: {{ .port | quote }}}
- {name: BREAKEVEN_BOARD_PATH_PREFIX, value: {{ .pathPrefix | quote }}}
- {name: BREAKEVEN_DASHBOARD_URL, value: {{ $.Values.alerts.dashboardUrl | quote }}}
- {name: BREAKEVEN_RUNBOOK_URL_PREFIX, value: {{ $.Values.alerts.runbookUrlPrefix | quote }}}
{{- if ne (toString .gpuPricePerHour) "" }}
- {name: BREAKEVEN_GPU_PRICE_PER_HOUR, value: {{ .gpuPricePerHour | quote }}}
{{- end }}
{{- if .expose.enabled }}
- {name: BREAKEVEN_BOARD_ADDRESS, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
{{- end }}
{{- end }}
{{- end }}
{{- if include "breakeven.takesProposals" . }}
- {name: BREAKEVEN_NEXT_ROLLOUT, value: "true"}
{{- end }}
{{- if .Values.admissionPolicy.enabled }}
- {name: BREAKEVEN_FOREIGN_IMAGES, value: "true"}
{{- end }}
- {name: TMPDIR, value: /tmp}
{{- with .Values.extraEnv }}{{ toYaml . | nindent 0 }}{{- end }}
{{- end -}}

{{/*
Refuses a release that watches all namespaces beside another one that does: each has a Lease of its own, so both would write. A rendering
without a cluster finds nothing; the operators then say so in their logs.
*/}}
{{- define "breakeven.alone" -}}
{{- if not .Values.watchNamespaces -}}
{{- range (lookup "apps/v1" "Deployment" "" "").items -}}
{{- $labels := dig "metadata" "labels" (dict) . -}}
{{- $chart := get $labels "helm.sh/chart" | toString -}}
{{- $own := and (eq .metadata.namespace $.Release.Namespace) (eq (get $labels "app.kubernetes.io/instance") $.Release.Name) -}}
{{- if and (hasPrefix (printf "%s-" $.Chart.Name) $chart) (not $own) -}}
{{- $home := .metadata.namespace -}}
{{- range .spec.template.spec.containers -}}
{{- $set := dict -}}
{{- range .env -}}{{- $_ := set $set .name (default "" .value) -}}{{- end -}}
{{- if and (hasKey $set "BREAKEVEN_WATCH_NAMESPACES") (not (get $set "BREAKEVEN_WATCH_NAMESPACES")) -}}
{{- fail (printf "a release in namespace %s watches all namespaces already: set watchNamespaces in both, or uninstall one" $home) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether owners' rollouts take the arm that was chosen: the cluster has mutating policies, and the chart installs one. */}}
{{- define "breakeven.takesProposals" -}}
{{- if and .Values.admissionPolicy.enabled (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy") }}true{{ end -}}
{{- end -}}
