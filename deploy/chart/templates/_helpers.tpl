{{- /* The objects are those of deploy/, which files/ has: this chart changes what its values say, and repeats nothing. */ -}}

{{- /* The objects of a file: a map with `items`. */ -}}
{{- define "posse.objects" -}}
{{- $items := list -}}
{{- range splitList "\n---\n" (.root.Files.Get (printf "files/%s" .file)) -}}
{{- $items = append $items (fromYaml .) -}}
{{- end -}}
{{- toJson (dict "items" $items) -}}
{{- end -}}

{{- define "posse.labels" -}}
app.kubernetes.io/part-of: posse
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* One object as text, with the labels of the release, in a namespace. An empty namespace: the object has none. */ -}}
{{- define "posse.object" -}}
{{- $object := .object -}}
{{- $labels := merge (dict) (fromYaml (include "posse.labels" .root)) ($object.metadata.labels | default dict) -}}
{{- $_ := set $object.metadata "labels" $labels -}}
{{- if .namespace -}}
{{- $_ := set $object.metadata "namespace" .namespace -}}
{{- end -}}
{{- range $object.subjects -}}
{{- $_ := set . "namespace" $.root.Release.Namespace -}}
{{- end -}}
{{- toYaml $object -}}
{{- end -}}

{{- define "posse.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* Changes a pod spec: the image of its container, and what the value `pod` says. */ -}}
{{- define "posse.pod" -}}
{{- $container := index .spec.containers 0 -}}
{{- $_ := set $container "image" (include "posse.image" .root) -}}
{{- $_ := set $container "imagePullPolicy" .root.Values.image.pullPolicy -}}
{{- $_ := mergeOverwrite .spec (deepCopy .root.Values.pod) -}}
{{- end -}}
