use crate::Result;
use crate::install::install;
use crate::progress::{Progress, cargo, root};
use crate::promises::Promises;
use std::fs;

/// All that must hold, in the order in which it fails soonest.
pub(crate) fn test(progress: &Progress) -> Result {
    install(progress)?;
    progress.run(cargo().args(["fmt", "--all", "--check"]))?;
    progress.run(
        cargo().args(["clippy", "--workspace", "--all-targets"]).args(["--", "-D", "warnings"]),
    )?;
    progress.run(
        cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    // The documentation's examples are among the tests.
    let (output, ended) = progress.run_and_listen(cargo().args(["test", "--workspace"]))?;
    ended?;
    let promises = Promises::read()?;
    promises.check(&output)?;
    for name in examples()? {
        progress.run(cargo().args([
            "run",
            "--quiet",
            "-p",
            "campanile-examples",
            "--example",
            &name,
        ]))?;
    }
    promises.show(progress);
    Ok(())
}

/// The names of all examples. The files are looked at, and not the manifest: a file that the
/// manifest has forgotten fails.
fn examples() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("examples"))? {
        let path = entry?.path();
        let is_file = path.extension().is_some_and(|extension| extension == "rs");
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if name != "lib" && (is_file || path.join("main.rs").is_file()) {
            names.push(name.into_owned());
        }
    }
    names.sort();
    Ok(names)
}
