#!/usr/bin/env bash
# build.sh [--print] [--push] [--prefix PREFIX] [--tag TAG] [NAME...]
# Builds the images exporter, probe, probe-nccl, probe-uccl-ep (or those named) with the versions of versions.env, an SBOM and provenance,
# and says how large each is and how much of it is shared. --print only shows the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

print=0 push=0 prefix=ghcr.io/efa-pulse tag=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' probes/__init__.py) names=()
while (($#)); do
    case $1 in
        --print) print=1 ;;
        --push) push=1 ;;
        --prefix) prefix=${2:?--prefix needs a value}; shift ;;
        --tag) tag=${2:?--tag needs a value}; shift ;;
        exporter | probe | probe-nccl | probe-uccl-ep) names+=("$1") ;;
        *) echo "usage: images/build.sh [--print] [--push] [--prefix PREFIX] [--tag TAG] [exporter|probe|probe-nccl|probe-uccl-ep]..." >&2; exit 64 ;;
    esac
    shift
done
((${#names[@]})) || names=(exporter probe probe-nccl probe-uccl-ep)

arguments=(--build-arg "VERSION=$tag" --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)")
while IFS= read -r line; do
    [[ -z $line || $line == \#* ]] || arguments+=(--build-arg "$line")
done <images/versions.env

for name in "${names[@]}"; do
    file=images/exporter/Dockerfile target=()
    [[ $name == exporter ]] || { file=images/probe/Dockerfile; target=(--target "$name"); }
    command=(docker buildx build -f "$file" "${target[@]}" "${arguments[@]}" -t "$prefix/$name:$tag" --sbom=true --provenance=true)
    if ((push)); then command+=(--push); else command+=(--load); fi
    # The exporter is also the witness of arm64 nodes (p6e-gb200); several platforms can only be pushed.
    [[ $name != exporter ]] || ((!push)) || command+=(--platform "linux/amd64,linux/arm64")
    if ((print)); then printf '%q ' "${command[@]}" .; echo; else "${command[@]}" .; fi
done
((print || push)) || {
    echo "image, bytes, layers:"
    for name in "${names[@]}"; do
        docker image inspect -f "$name {{.Size}} {{len .RootFS.Layers}}" "$prefix/$name:$tag"
    done
    echo "layers that more than one of them has:"
    for name in "${names[@]}"; do
        docker image inspect -f '{{range .RootFS.Layers}}{{println .}}{{end}}' "$prefix/$name:$tag"
    done | sed '/^$/d' | sort | uniq -d | wc -l
}
