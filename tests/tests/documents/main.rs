//! Checks that the targets of the documents' links exist, and that their code blocks are compiled:
//! as doctests of this package.
#![expect(clippy::unwrap_used, reason = "test helpers")]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Extracts all links of a document as text and target.
fn links(document: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(document).unwrap();
    text.match_indices("](")
        .map(|(middle, _)| {
            let before = &text[..middle];
            let label = &before[before.rfind('[').unwrap() + 1..];
            let after = &text[middle + 2..];
            (label.to_owned(), after[..after.find(')').unwrap()].to_owned())
        })
        .collect()
}

/// Lists the Markdown files in a folder.
fn markdown_files(folder: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(root().join(folder)).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

fn documents() -> Vec<PathBuf> {
    [".", "docs", "docs/decisions", "lua", "sql"].into_iter().flat_map(markdown_files).collect()
}

/// Checks whether a document has a heading or an anchor with this id.
fn has_anchor(document: &Path, id: &str) -> bool {
    let text = fs::read_to_string(document).unwrap();
    let mut is_code = false;
    let mut headings = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    headings.any(|line| heading_id(line) == id) || text.contains(&format!("<a id=\"{id}\">"))
}

/// Converts a heading into the id that rustdoc and the usual renderers of Markdown give it.
fn heading_id(line: &str) -> String {
    let title = line.trim_start_matches('#').trim().to_lowercase();
    let title = title.chars().map(|c| if c == ' ' { '-' } else { c });
    title.filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

#[test]
fn links_within_project_have_existing_targets() {
    let mut count = 0;
    for document in documents() {
        for (label, target) in links(&document) {
            if target.starts_with("http") {
                continue;
            }
            let (path, id) = target.split_once('#').unwrap_or((&target, ""));
            let target_path = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            let exists = target_path.exists() && (id.is_empty() || has_anchor(&target_path, id));
            assert!(exists, "{}: [{label}]({target})", document.display());
            count += 1;
        }
    }
    assert!(count > 20, "only {count} links were found");
}

/// `cargo doc` checks the guide's links to items and pages, but not to the headings of pages.
#[test]
fn links_within_guide_have_existing_headings() {
    let mut count = 0;
    for page in markdown_files("crates/library/campanile/src/guide") {
        for (label, target) in links(&page) {
            let Some((name, id)) = target.split_once('#').filter(|_| !target.contains("//")) else {
                continue;
            };
            let other = match name {
                "" => page.clone(),
                name => page.with_file_name(format!("{name}.md")),
            };
            assert!(has_anchor(&other, id), "{}: [{label}]({target})", page.display());
            count += 1;
        }
    }
    assert!(count > 10, "only {count} links were found");
}

#[test]
fn rust_code_of_documents_is_compiled() {
    let compiled = fs::read_to_string(root().join("tests/src/lib.rs")).unwrap();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let mut fences = text.lines().filter_map(|line| line.strip_prefix("```"));
        if fences.any(|language| language.starts_with("rust")) {
            let path = document.strip_prefix(root()).unwrap().display().to_string();
            let path = path.trim_start_matches("./");
            assert!(compiled.contains(&format!("../../{path}\"")), "{path} is not compiled");
            assert!(!text.contains("```rust,ignore"), "{path} has a block that is not compiled");
        }
    }
}

#[test]
fn tests_named_in_documents_exist() {
    for (document, min_count) in [("docs/evidence.md", 100), ("docs/layers.md", 30)] {
        let document = root().join(document);
        let mut count = 0;
        for (label, target) in links(&document) {
            let name = label.strip_prefix('`').and_then(|label| label.strip_suffix('`'));
            let Some(name) = name else {
                continue;
            };
            let file = fs::read_to_string(document.parent().unwrap().join(&target)).unwrap();
            assert!(file.contains(&format!("fn {name}(")), "{target} has no test {name}");
            count += 1;
        }
        assert!(count > min_count, "{}: only {count} tests are named", document.display());
    }
}
