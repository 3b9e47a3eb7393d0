//! Texts of others for a terminal.

use std::fmt;

/// Displays a text with its control characters and invisible characters escaped. Keys are chosen by
/// producers, and must not forge lines, change their order, or reach a terminal.
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match is_visible(char) {
            true => write!(f, "{char}"),
            false => write!(f, "{}", char.escape_unicode()),
        })
    }
}

/// Checks that a character is no control character, and none that separates lines, joins characters
/// or sets their direction.
fn is_visible(char: char) -> bool {
    let is_format = matches!(
        char,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    !char.is_control() && !is_format
}
