"""Reads YAML, renders the chart, and looks into schemas, in the environment that tools.sh makes; prints JSON.

manifests.py read                       YAML on stdin ──> its documents
manifests.py chart VALUES               the chart with these values (JSON) ──> its documents
manifests.py check VERSION              documents as JSON on stdin: an error if Kubernetes VERSION does not know one
manifests.py compose SCHEMA             YAML on stdin: the same for a compose file
manifests.py crd FILE                   documents as JSON on stdin: the same for the resource that FILE defines
manifests.py render CHART VALUES        another chart with a file of values that its schema accepts ──> its documents
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CHART = Path(__file__).parent.parent.parent / "deploy" / "helm" / "mmcached"


def read(text: str) -> list[Any]:
    return [each for each in import_module("yaml").safe_load_all(text) if each is not None]


def chart(values: dict[str, Any]) -> list[Any]:
    helm = import_module("helm_python")
    errors = [each for each in helm.lint(str(CHART))["messages"] if each["severity"] > 1]
    if errors:
        raise SystemExit(json.dumps(errors))
    with helm.Chart.load(str(CHART)) as loaded:
        return [each for text in loaded.render(values=values, name="cache").values() for each in read(text)]


def check(documents: list[Any], version: str) -> None:
    for each in documents:
        import_module("kubernetes_validate").validate(each, version, strict=True)


def closed(schema: Any) -> Any:
    """Return the schema of a resource as JSON Schema that refuses unknown fields, as Kubernetes drops them."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if "properties" in found and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    return found


def crd(documents: list[Any], file: Path) -> None:
    (definition,) = read(file.read_text())
    schemas = {
        f"{definition['spec']['group']}/{each['name']}": each["schema"]["openAPIV3Schema"]
        for each in definition["spec"]["versions"]
    }
    for each in documents:
        if each["kind"] != definition["spec"]["names"]["kind"]:
            raise SystemExit(f"{file.name} does not define {each['kind']}")
        schema = closed(schemas[each["apiVersion"]])
        schema["properties"]["metadata"] = {"type": "object"}
        import_module("jsonschema").validate(each, schema)


def render(path: str, values: str) -> list[Any]:
    helm = import_module("helm_python")
    given = read(Path(values).read_text())[0]
    with helm.Chart.load(path) as loaded:
        loaded.validate_schema(given)
        return [each for text in loaded.render(values=given, name="recipe").values() for each in read(text)]


def main() -> None:
    verb, *arguments = sys.argv[1:]
    match verb:
        case "read":
            json.dump(read(sys.stdin.read()), sys.stdout)
        case "chart":
            json.dump(chart(json.loads(arguments[0])), sys.stdout)
        case "check":
            check(json.load(sys.stdin), arguments[0])
        case "crd":
            crd(json.load(sys.stdin), Path(arguments[0]))
        case "render":
            json.dump(render(*arguments), sys.stdout)
        case "compose":
            (document,) = read(sys.stdin.read())
            import_module("jsonschema").validate(document, json.loads(Path(arguments[0]).read_text()))


if __name__ == "__main__":
    main()
