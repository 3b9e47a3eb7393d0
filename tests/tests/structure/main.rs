//! The floors of the tree: which crate depends on which, and that no module of a crate uses one above it.

#![expect(clippy::unwrap_used, reason = "this is a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates that ship, from the bottom to the top, each with the crates of this project that it may depend
/// on.
const CRATES: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("idempotency", &["core"]),
    ("driver", &["core", "idempotency"]),
    ("otel", &["core"]),
    ("redis", &["core", "idempotency", "lua"]),
    ("postgres", &["core", "idempotency", "sql"]),
    ("dynamodb", &["core", "idempotency"]),
    ("kafka", &["core", "driver", "idempotency"]),
    ("admin", &["core", "dynamodb", "idempotency", "kafka", "postgres", "redis", "sql"]),
    ("cli", &["admin", "core", "idempotency", "kafka", "postgres", "redis"]),
];

/// The circles of modules that are accepted: a layer, its service and its future know each other, and so do
/// the connections and the calls of a store.
const CIRCLES: &[(&str, &[&str])] = &[
    ("idempotency", &["error", "keeper", "telemetry"]),
    ("idempotency", &["future", "layer", "service"]),
    ("redis", &["connection", "connector", "error", "key", "simulation", "tls", "topology"]),
    ("redis", &["batch", "check", "expire", "router", "store", "wait"]),
    (
        "postgres",
        &[
            "batch", "call", "connect", "error", "failure", "inspect", "pool", "response", "store",
            "sweep",
        ],
    ),
    ("postgres", &["hosts", "simulation"]),
    ("dynamodb", &["config", "credentials"]),
];

/// The folder of a crate, in that of the library or of the operations.
fn folder(name: &str) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let name = format!("campanile-{name}");
    let folders = ["library", "operations", "proof"].map(|floor| crates.join(floor).join(&name));
    folders.into_iter().find(|folder| folder.is_dir()).unwrap()
}

#[test]
fn crates_depend_only_on_those_below_them() {
    for (name, allowed) in CRATES {
        let manifest = fs::read_to_string(folder(name).join("Cargo.toml")).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap();
        let own = dependencies.lines().filter_map(|line| line.strip_prefix("campanile-"));
        for own in own {
            let own = own.split(['.', ' ']).next().unwrap();
            assert!(allowed.contains(&own), "campanile-{name} depends on campanile-{own}");
        }
    }
}

#[test]
fn no_module_uses_one_above_it() {
    for (name, _) in CRATES {
        let imports = imports(&folder(name).join("src"));
        for circle in circles(&imports) {
            let circle: Vec<&str> = circle.iter().map(|module| &**module).collect();
            let is_accepted =
                CIRCLES.iter().any(|(of, accepted)| of == name && circle == *accepted);
            assert!(is_accepted, "the modules of campanile-{name} import in a circle: {circle:?}");
        }
    }
}

/// The modules of a crate's top level, each with those that it uses, without its tests.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn imports(src: &Path) -> Imports {
    let mut imports = Imports::new();
    let mut folders = vec![src.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let inside = path.strip_prefix(src).unwrap();
            let is_test = inside.iter().any(|part| {
                let part = Path::new(part).file_stem().unwrap();
                part == "tests" || part == "fuzz"
            });
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|of| of == "rs") && !is_test {
                let top = Path::new(inside.iter().next().unwrap()).file_stem().unwrap();
                let module = top.to_str().unwrap();
                if !matches!(module, "lib" | "main") {
                    let used = used(&fs::read_to_string(&path).unwrap());
                    imports.entry(module.to_owned()).or_default().extend(used);
                }
            }
        }
    }
    let modules: BTreeSet<String> = imports.keys().cloned().collect();
    for (module, used) in &mut imports {
        used.retain(|used| used != module && modules.contains(used));
    }
    imports
}

/// The modules of the top level that a file names.
fn used(source: &str) -> Vec<String> {
    let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let code = product.lines().filter(|line| !line.trim_start().starts_with("//"));
    let paths = code.flat_map(|line| line.split("crate::").skip(1));
    let name = |path: &str| {
        path.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)
    };
    paths.filter_map(name).filter(|name| !name.is_empty()).collect()
}

/// The sets of modules that reach each other.
fn circles(imports: &Imports) -> BTreeSet<Vec<String>> {
    let reached = |from: &String| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            next.extend(imports[module].iter().filter(|used| reached.insert((*used).clone())));
        }
        reached
    };
    let all: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|of| (of, reached(of))).collect();
    let circle = |module: &String| -> Vec<String> {
        all[module].iter().filter(|other| all[other].contains(module)).cloned().collect()
    };
    imports.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn circle_of_modules_is_found() {
    let imports = |edges: &[(&str, &[&str])]| -> Imports {
        let used = |used: &[&str]| used.iter().map(|used| (*used).to_owned()).collect();
        edges.iter().map(|(module, of)| ((*module).to_owned(), used(of))).collect()
    };
    let floors = imports(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]);
    assert!(circles(&floors).is_empty());
    let circle = imports(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])]);
    assert_eq!(circles(&circle), BTreeSet::from([vec!["b".to_owned(), "c".to_owned()]]));
}
