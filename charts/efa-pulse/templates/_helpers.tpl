{{- define "efa-pulse.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "efa-pulse.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "efa-pulse.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "efa-pulse.probeNamespace" -}}
{{- $name := default (printf "%s-probes" .Release.Namespace) .Values.probes.namespace.name -}}
{{- if eq $name .Release.Namespace -}}
{{- fail (printf "probes.namespace.name: %q is the namespace of the release itself; probe pods need one of their own" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "efa-pulse.serviceAccount" -}}
{{- default (include "efa-pulse.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "efa-pulse.priorityClass" -}}
{{- if .Values.probes.priorityClass.create -}}
{{- printf "%s-probe" (include "efa-pulse.fullname" .) -}}
{{- else -}}
{{- .Values.probes.priorityClass.existing -}}
{{- end -}}
{{- end -}}

{{- define "efa-pulse.rendezvousSecret" -}}
{{- default (printf "%s-rendezvous" (include "efa-pulse.fullname" .)) .Values.probes.existingSecret -}}
{{- end -}}

{{/* Labels of every object. Call with (dict "root" $ "component" NAME). */}}
{{- define "efa-pulse.labels" -}}
{{ include "efa-pulse.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "efa-pulse.selector" -}}
app.kubernetes.io/name: efa-pulse
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* A whole image reference. Call with (dict "root" $ "image" VALUES). */}}
{{- define "efa-pulse.image" -}}
{{- $path := .image.repository -}}
{{- with .root.Values.imagePrefix }}{{- $path = printf "%s/%s" (trimSuffix "/" .) $path -}}{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $path .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $path (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The image of one probe. Call with (dict "root" $ "probe" NAME). */}}
{{- define "efa-pulse.probeImage" -}}
{{- $own := index .root.Values.probes.images .probe -}}
{{- $values := .root.Values.probes.image -}}
{{- if $own -}}
{{- $own -}}
{{- else if has .probe (list "nccl" "uccl-ep") -}}
{{- include "efa-pulse.image" (dict "root" .root "image" (dict "repository" (printf "%s-%s" $values.repository .probe) "tag" $values.tag "digest" "")) -}}
{{- else -}}
{{- include "efa-pulse.image" (dict "root" .root "image" $values) -}}
{{- end -}}
{{- end -}}

{{- define "efa-pulse.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* "true" where a kind of the Prometheus Operator is wanted. Call with (dict "root" $ "enabled" VALUE "kind" NAME). */}}
{{- define "efa-pulse.monitored" -}}
{{- if kindIs "bool" .enabled -}}
{{- if .enabled }}true{{ end -}}
{{- else if .root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) -}}
true
{{- end -}}
{{- end -}}

{{/* Refuses a scrape timeout above the interval: Prometheus would refuse its whole configuration. */}}
{{- define "efa-pulse.scrapeTimes" -}}
{{- $unit := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 -}}
{{- $seen := dict -}}
{{- range $key := list "interval" "scrapeTimeout" -}}
{{- $text := index $.scrape $key -}}
{{- $number := regexFind "^[0-9]+" $text | int64 -}}
{{- $_ := set $seen $key (mul $number (index $unit (regexFind "[a-z]+$" $text))) -}}
{{- end -}}
{{- if gt (index $seen "scrapeTimeout") (index $seen "interval") -}}
{{- fail (printf "%s.scrapeTimeout: %s is longer than the interval %s" .path .scrape.scrapeTimeout .scrape.interval) -}}
{{- end -}}
interval: {{ .scrape.interval }}
scrapeTimeout: {{ .scrape.scrapeTimeout }}
{{- end -}}

{{/* What the chart decides of the configuration. The schema keeps these keys out of .Values.config. */}}
{{- define "efa-pulse.ownConfig" -}}
{{- $name := include "efa-pulse.fullname" . -}}
inventory:
  mode: kubernetes
kubernetes:
  install: {{ $name }}
  namespace: {{ .Release.Namespace }}
  probe_namespace: {{ include "efa-pulse.probeNamespace" . }}
  owner: {{ $name }}-state
  anchor: {{ $name }}-anchor
  service: {{ $name }}-runs
  secret: {{ include "efa-pulse.rendezvousSecret" . }}
  leader:
    lease: {{ $name }}
  pods:
    image: {{ include "efa-pulse.probeImage" (dict "root" . "probe" "") }}
    pull_policy: {{ .Values.probes.image.pullPolicy }}
    pull_secrets: {{ toJson .Values.imagePullSecrets }}
    service_account: {{ $name }}-probe
    priority_class: {{ include "efa-pulse.priorityClass" . | default "null" }}
    {{- range $probe := list "mooncake" "nixl" "node" "nccl" "uccl-ep" }}
    {{- if or (index $.Values.probes.images $probe) (has $probe (list "nccl" "uccl-ep")) }}
    {{ $probe }}:
      image: {{ include "efa-pulse.probeImage" (dict "root" $ "probe" $probe) }}
    {{- end }}
    {{- end }}
  witness:
    enabled: {{ .Values.witness.enabled }}
    port: {{ .Values.witness.port }}
    selector:
      {{- include "efa-pulse.selector" (dict "root" . "component" "witness") | nindent 6 }}
archive:
  folder: /var/lib/efa-pulse/archive
server:
  listen: ":{{ .Values.service.port }}"
  {{- if .Values.web.configSecret }}
  web_config: /etc/efa-pulse/web/web-config.yml
  {{- end }}
  {{- if .Values.web.bearerSecret }}
  bearer_token:
    file: /etc/efa-pulse/bearer/token
  {{- end }}
{{- end -}}

{{- define "efa-pulse.config" -}}
{{- mergeOverwrite (deepCopy .Values.config) (fromYaml (include "efa-pulse.ownConfig" .)) | toYaml -}}
{{- end -}}

{{/* The settings that a running service does not take over; the others are read again within seconds, without a restart. */}}
{{- define "efa-pulse.restartConfig" -}}
{{- $all := fromYaml (include "efa-pulse.config" .) -}}
{{- $launch := default dict $all.launch -}}
{{- $gates := default dict (default dict $all.planning).gates -}}
{{- list $all.server $all.metrics $launch.local $launch.grace $all.logging $all.inventory $all.kubernetes $gates.tolerations
    $all.grafana $all.archive $all.ec2 $all.conditions | toJson -}}
{{- end -}}
