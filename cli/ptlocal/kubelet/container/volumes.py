"""A pod's volumes as local directories, filled before its containers start and not updated afterwards.

ConfigMap, Secret, downwardAPI and projected volumes (with a service account's token, which is not renewed) become
files; emptyDir a directory of the pod; hostPath the path itself; a persistentVolumeClaim a directory of the cluster
that outlives pods. Other kinds are refused by name.
"""

import os
from pathlib import Path

from ptkube.resources import Manifest
from ptlocal.kubelet.container.path_rewriting import Mount, expand
from ptlocal.kubelet.container.value_sources import NotReady, References, field_value, keyed_data, resource_value

Files = dict[str, tuple[bytes, int]]  # relative path -> content, mode

_MODE = 0o644


def prepare(pod: Manifest, node: Manifest, folder: Path, claims: Path, refs: References) -> dict[str, Path]:
    """Create the pod's volumes; return volume name -> its directory (or the file of a hostPath)."""
    return {
        volume["name"]: _prepare_one(pod, node, volume, folder / volume["name"], claims, refs)
        for volume in pod["spec"].get("volumes") or []
    }


def mounts_of(container: Manifest, volumes: dict[str, Path], env: dict[str, str]) -> list[Mount]:
    """Return the local path of each mountPath of a container. Missing subPaths are created."""
    mounts = []
    for mount in container.get("volumeMounts") or []:
        local = volumes[mount["name"]]
        sub = expand(mount["subPathExpr"], env) if mount.get("subPathExpr") else mount.get("subPath") or ""
        if sub:
            local = local / sub
            if not local.exists():
                local.mkdir(parents=True)
        mounts.append(Mount(mount["mountPath"], str(local)))
    return mounts


def _prepare_one(pod: Manifest, node: Manifest, volume: Manifest, folder: Path, claims: Path, refs: References) -> Path:
    if "hostPath" in volume:
        return _host_path(volume)
    if "persistentVolumeClaim" in volume:
        folder = claims / pod["metadata"]["namespace"] / volume["persistentVolumeClaim"]["claimName"]
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    if "emptyDir" not in volume:
        try:
            _write(folder, _files(pod, node, volume, refs))
        except NotReady as error:
            raise NotReady(f'MountVolume.SetUp failed for volume "{volume["name"]}": {error}', "FailedMount") from error
    return folder


def _host_path(volume: Manifest) -> Path:
    path, kind = Path(volume["hostPath"]["path"]), volume["hostPath"].get("type")
    if kind in ("DirectoryOrCreate", "FileOrCreate"):
        target = path if kind == "DirectoryOrCreate" else path.parent
        target.mkdir(parents=True, exist_ok=True)
    elif (kind == "Directory" and not path.is_dir()) or (kind == "File" and not path.is_file()):
        setup = f'MountVolume.SetUp failed for volume "{volume["name"]}"'
        raise NotReady(f"{setup}: hostPath type check failed: {path} is not a {kind.lower()}", "FailedMount")
    return path


def _files(pod: Manifest, node: Manifest, source: Manifest, refs: References) -> Files:
    if "projected" in source:
        files: Files = {}
        for part in source["projected"].get("sources") or []:
            files.update(_files(pod, node, part, refs))
        return files
    if "downwardAPI" in source:
        return {item["path"]: (_downward(pod, node, item), _MODE) for item in source["downwardAPI"].get("items") or []}
    if "serviceAccountToken" in source:
        token = source["serviceAccountToken"]
        return {token["path"]: (refs.token(pod, token).encode(), 0o600)}
    for field, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if field in source:
            return _keyed_files(kind, source[field], refs)
    supported = "configMap, secret, emptyDir, projected, downwardAPI, hostPath, persistentVolumeClaim"
    kinds = ", ".join(key for key in source if key != "name")
    raise NotReady(f"volume kind {kinds} does not exist in the embedded cluster; accepted: {supported}")


def _keyed_files(kind: str, source: Manifest, refs: References) -> Files:
    name = str(source.get("secretName") or source.get("name"))
    item = refs.find(kind, name)
    if item is None:
        if source.get("optional"):
            return {}
        raise NotReady(f'{kind.lower()} "{name}" not found')
    data = keyed_data(kind, item)
    mode = source.get("defaultMode") or _MODE
    if not source.get("items"):
        return {key: (value, mode) for key, value in data.items()}
    files: Files = {}
    for entry in source["items"]:
        if entry["key"] in data:
            files[entry["path"]] = (data[entry["key"]], entry.get("mode") or mode)
        elif not source.get("optional"):
            raise NotReady(f"references non-existent {kind.lower()} key: {entry['key']}")
    return files


def _downward(pod: Manifest, node: Manifest, item: Manifest) -> bytes:
    if item.get("fieldRef"):
        return field_value(pod, item["fieldRef"]["fieldPath"]).encode()
    return resource_value(pod, pod["spec"]["containers"][0], node, item["resourceFieldRef"]).encode()


def _write(folder: Path, files: Files) -> None:
    for name, (content, mode) in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise NotReady(f"path '{name}' leads out of the volume")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may be read-only from an earlier attempt
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
