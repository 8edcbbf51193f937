{{- define "xrouter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The prefix of all names: short enough for the suffixes of pods and claims. */}}
{{- define "xrouter.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "xrouter.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "xrouter.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select pods; they never change. Called with a dict of root and component. */}}
{{- define "xrouter.selector" -}}
app.kubernetes.io/name: {{ include "xrouter.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "xrouter.labels" -}}
{{ include "xrouter.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "xrouter.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "xrouter.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "xrouter.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* How long a pod has to drain, beyond the router's own limit. */}}
{{- define "xrouter.terminationGrace" -}}
{{- add (int .Values.drainGraceSeconds) 60 -}}
{{- end -}}

{{- define "xrouter.configMap" -}}
{{- default (printf "%s-config" (include "xrouter.fullname" .)) .Values.existingConfig -}}
{{- end -}}

{{- define "xrouter.catalogMap" -}}
{{- if .Values.catalog.existing -}}
{{- .Values.catalog.existing -}}
{{- else if .Values.catalog.files -}}
{{- printf "%s-catalog" (include "xrouter.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* The component that accepts HTTP. */}}
{{- define "xrouter.intake" -}}
{{- ternary "gateway" "router" .Values.gateways.enabled -}}
{{- end -}}

{{/* The pod settings of every component. */}}
{{- define "xrouter.pod" -}}
serviceAccountName: {{ include "xrouter.serviceAccountName" . }}
automountServiceAccountToken: false
# Services of the namespace would become variables, some with names of settings.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- end -}}

{{/* Where the pods of one component may run; called with its values. */}}
{{- define "xrouter.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Containers that the values add to the pods of one component; called with its values. */}}
{{- define "xrouter.extraContainers" -}}
{{- with .extraContainers }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "xrouter.initContainers" -}}
{{- with .extraInitContainers }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The ingress of a service; called with a dict of root, component, name, port and values. */}}
{{- define "xrouter.ingress" -}}
{{- if not .values.hosts -}}
{{- fail (printf "%s has an ingress without hosts: set its `hosts`, such as [{host: events.example, paths: [/]}]" .name) -}}
{{- end }}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ .name }}
  labels:
    {{- include "xrouter.labels" . | nindent 4 }}
  {{- with .values.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with .values.className }}
  ingressClassName: {{ . }}
  {{- end }}
  {{- with .values.tls }}
  tls:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  rules:
    {{- $service := dict "name" .name "port" (dict "name" .port) }}
    {{- range .values.hosts }}
    - {{ if .host }}host: {{ .host | quote }}
      {{ end }}http:
        paths:
          {{- range .paths }}
          - path: {{ . | quote }}
            pathType: Prefix
            backend:
              service: {{ toJson $service }}
          {{- end }}
    {{- end }}
{{- end -}}

{{- define "xrouter.container" -}}
image: {{ include "xrouter.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end -}}

{{/* The environment of router and gateways: settings of the chart, then secrets, then additions of the values. */}}
{{- define "xrouter.environment" -}}
env:
  - {name: XROUTER_STATE, value: /var/lib/xrouter/state}
  - {name: XROUTER_HTTP__HOST, value: "0.0.0.0"}
  - {name: XROUTER_HTTP__PORT, value: {{ .Values.httpPort | quote }}}
  - {name: XROUTER_METRICS__HOST, value: "0.0.0.0"}
  - {name: XROUTER_METRICS__PORT, value: {{ .Values.metrics.port | quote }}}
  - {name: XROUTER_DRAIN_GRACE, value: {{ printf "%ds" (int .Values.drainGraceSeconds) | quote }}}
  - {name: XROUTER_LOG__FORMAT, value: {{ .Values.logFormat | quote }}}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.secrets.environment }}
envFrom:
  {{- range . }}
  - secretRef: {name: {{ . | quote }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "xrouter.mounts" -}}
- {name: config, mountPath: /etc/xrouter, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if include "xrouter.catalogMap" . }}
- {name: catalog, mountPath: /etc/xrouter-catalog, readOnly: true}
{{- end }}
{{- range $name, $secret := .Values.secrets.files }}
- {name: {{ printf "secret-%s" $name }}, mountPath: {{ printf "/etc/xrouter-secrets/%s" $name }}, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "xrouter.volumes" -}}
- name: config
  configMap: {name: {{ include "xrouter.configMap" . }}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.router.tmpSize }}}
{{- with include "xrouter.catalogMap" . }}
- name: catalog
  configMap: {name: {{ . }}}
{{- end }}
{{- range $name, $secret := .Values.secrets.files }}
- name: {{ printf "secret-%s" $name }}
  # Readable by the group that the pod's volumes belong to, which is the router's.
  secret: {secretName: {{ $secret | quote }}, defaultMode: 0440}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Alive is "worth keeping", not "ready": a router that holds a batch for a sink that is down must not be restarted. A
start may wait for a first catalog or recover a state, both of which /healthz answers through.
*/}}
{{- define "xrouter.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{/* Restarts the pods after a change of mounted files that are read only at startup. */}}
{{- define "xrouter.configSum" -}}
{{- with .Values.config }}
checksum/config: {{ toYaml . | sha256sum }}
{{- end }}
{{- end -}}

{{/* Values that exclude each other, each with its remedy. */}}
{{- define "xrouter.check" -}}
{{- if not (or .Values.config .Values.existingConfig) -}}
{{- fail "the router has no settings: give `config` (settings as in router.yaml), or `existingConfig`, the name of a ConfigMap with router.yaml" -}}
{{- end -}}
{{- if and .Values.config .Values.existingConfig -}}
{{- fail "`config` and `existingConfig` are both given: leave one out" -}}
{{- end -}}
{{- if and .Values.catalog.files .Values.catalog.existing -}}
{{- fail "`catalog.files` and `catalog.existing` are both given: leave one out" -}}
{{- end -}}
{{- if .Values.config -}}
{{- $topic := dig "inbox" "kafka" "" .Values.config -}}
{{- if and .Values.gateways.enabled (not $topic) -}}
{{- fail "separate gateways need a topic between them and the router: give `config.inbox.kafka`, or leave `gateways.enabled` off to receive messages in the router" -}}
{{- end -}}
{{- if and $topic (not .Values.gateways.enabled) -}}
{{- fail "with `config.inbox.kafka` the router receives no messages itself: set `gateways.enabled`, or leave `inbox.kafka` out" -}}
{{- end -}}
{{- end -}}
{{- if .Values.registry.enabled -}}
{{- if not (dig "http" "auth" "" .Values.registry.config) -}}
{{- if not (dig "http" "tls" "ca" "" .Values.registry.config) -}}
{{- fail "nobody may use the registry: give `registry.config.http.auth`, whose secrets are references such as ${NAME}" -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int .Values.registry.replicas) 1) (not (dig "store" "url" "" .Values.registry.config)) -}}
{{- fail "several pods of a registry need PostgreSQL: give `registry.config.store.url`, or one replica" -}}
{{- end -}}
{{- end -}}
{{- end -}}
