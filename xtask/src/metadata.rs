//! What cargo knows about all packages.

use crate::Result;
use crate::progress::cargo;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Stdio;

/// The output of `cargo metadata` for the workspace and all its dependencies.
pub(crate) struct Metadata {
    packages: BTreeMap<String, Package>,
    /// The dependencies of each package, without those of its tests.
    dependencies: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The path of its `Cargo.toml`.
    pub(crate) manifest: PathBuf,
    /// `None` for a package in this workspace.
    pub(crate) source: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) rust_version: Option<String>,
    /// Without `default`.
    pub(crate) features: Vec<String>,
    pub(crate) is_published: bool,
    /// Fields of the manifest that a registry shows and that are not set.
    pub(crate) missing: Vec<&'static str>,
}

/// The fields that each published package must set.
const FIELDS: &[&str] = &[
    "description",
    "license",
    "readme",
    "documentation",
    "rust_version",
    "keywords",
    "categories",
];

impl Metadata {
    /// Reads the metadata for all features and all platforms.
    pub(crate) fn read() -> Result<Self> {
        let mut command = cargo();
        command.args(["metadata", "--format-version", "1", "--all-features", "--locked"]);
        let output = command.stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(format!("`cargo metadata` failed: {}", output.status).into());
        }
        Self::parse(&output.stdout)
    }

    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        let value: Value = serde_json::from_slice(json)?;
        let packages = list(&value["packages"])
            .map(|package| Ok((id(&package["id"])?, Package::new(package)?)))
            .collect::<Result<_>>()?;
        let dependencies = list(&value["resolve"]["nodes"])
            .map(|node| {
                let used = list(&node["deps"]).filter(|dependency| {
                    list(&dependency["dep_kinds"]).any(|kind| kind["kind"] != "dev")
                });
                let used = used.map(|dependency| id(&dependency["pkg"])).collect::<Result<_>>()?;
                Ok((id(&node["id"])?, used))
            })
            .collect::<Result<_>>()?;
        Ok(Self { packages, dependencies })
    }

    pub(crate) fn packages(&self) -> impl Iterator<Item = &Package> {
        self.packages.values()
    }

    /// The packages of this workspace that are published.
    pub(crate) fn published(&self) -> impl Iterator<Item = &Package> {
        self.packages().filter(|package| package.is_published && package.source.is_none())
    }

    /// All packages that are built for a user of the published packages, including the published
    /// packages.
    pub(crate) fn built_for_users(&self) -> impl Iterator<Item = &Package> {
        let is_ours = |package: &Package| package.is_published && package.source.is_none();
        let mut todo: Vec<&str> =
            self.packages.iter().filter(|(_, p)| is_ours(p)).map(|(id, _)| &**id).collect();
        let mut found = BTreeSet::new();
        while let Some(id) = todo.pop() {
            if found.insert(id) {
                todo.extend(self.dependencies.get(id).into_iter().flatten().map(|id| &**id));
            }
        }
        found.into_iter().filter_map(|id| self.packages.get(id))
    }
}

impl Package {
    fn new(value: &Value) -> Result<Self> {
        let text = |field: &str| value[field].as_str().map(str::to_owned);
        let required = |field: &str| text(field).ok_or(format!("a package has no {field}"));
        let features = value["features"].as_object().into_iter().flat_map(|map| map.keys());
        let is_set = |field: &str| match &value[field] {
            Value::Array(list) => !list.is_empty(),
            value => !value.is_null(),
        };
        Ok(Self {
            name: required("name")?,
            version: required("version")?,
            manifest: required("manifest_path")?.into(),
            source: text("source"),
            license: text("license"),
            rust_version: text("rust_version"),
            features: features.filter(|name| *name != "default").cloned().collect(),
            // A list of registries; `publish = false` is an empty list.
            is_published: value["publish"] != Value::Array(Vec::new()),
            missing: FIELDS.iter().copied().filter(|field| !is_set(field)).collect(),
        })
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn id(value: &Value) -> Result<String> {
    Ok(value.as_str().ok_or("a package has no id")?.to_owned())
}
