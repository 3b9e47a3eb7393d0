//! The result of an examination.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use super::finding::{Finding, FindingKind, Severity};

/// The result of [`examine`](super::examine).
///
/// `Display` formats it for a terminal, and `Serialize` for programs.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The problems, the most severe first.
    pub findings: Vec<Finding>,
    /// The problems that were [accepted](super::Deployment::accept).
    pub accepted: Vec<Finding>,
    /// What was not checked, and why.
    pub unchecked: Vec<Unchecked>,
}

/// Something that was not checked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Unchecked {
    /// What was not checked.
    pub what: String,
    /// Why, and how to check it.
    pub why: Cow<'static, str>,
}

impl Report {
    /// Checks whether nothing can be lost and nothing fails: there is no finding other than
    /// [advice](Severity::Advice), apart from those that were accepted.
    pub fn is_sound(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Advice)
    }

    pub(super) fn add(
        &mut self,
        (kind, severity): (FindingKind, Severity),
        subject: impl Into<String>,
        observed: impl Into<Cow<'static, str>>,
        risk: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) {
        self.findings.push(Finding {
            kind,
            severity,
            subject: subject.into(),
            observed: observed.into(),
            risk: risk.into(),
            remedy: remedy.into(),
        });
    }

    pub(super) fn add_unchecked(
        &mut self,
        what: impl Into<String>,
        why: impl Into<Cow<'static, str>>,
    ) {
        self.unchecked.push(Unchecked { what: what.into(), why: why.into() });
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.unchecked.extend(other.unchecked);
    }

    /// Moves accepted findings to their own list, and sorts the others.
    pub(super) fn finish(mut self, accepted: &[FindingKind]) -> Self {
        let is_open = |finding: &Finding| !accepted.contains(&finding.kind);
        (self.findings, self.accepted) = self.findings.into_iter().partition(is_open);
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let Finding { kind, severity, subject, observed, risk, remedy } = finding;
            let severity = match severity {
                Severity::DataLoss => "DATA LOSS",
                Severity::Failure => "FAILURE",
                Severity::Advice => "ADVICE",
            };
            writeln!(f, "{severity} {kind}: {subject}")?;
            writeln!(f, "  found  {observed}")?;
            writeln!(f, "  risk   {risk}")?;
            writeln!(f, "  fix    {remedy}")?;
            writeln!(f)?;
        }
        for finding in &self.accepted {
            writeln!(f, "accepted {}: {}: {}", finding.kind, finding.subject, finding.observed)?;
        }
        for Unchecked { what, why } in &self.unchecked {
            writeln!(f, "not checked: {what}: {why}")?;
        }
        let count = |severity| self.findings.iter().filter(|it| it.severity == severity).count();
        write!(
            f,
            "found: {} data loss, {} failure, {} advice; {} accepted; {} not checked",
            count(Severity::DataLoss),
            count(Severity::Failure),
            count(Severity::Advice),
            self.accepted.len(),
            self.unchecked.len()
        )
    }
}
