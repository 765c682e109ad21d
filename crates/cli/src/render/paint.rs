//! Colours, and whether to use them.

use anstyle::{AnsiColor, Style};

/// For whom stdout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For eyes: aligned tables with a heading, colours if they are wanted.
    Terminal(Paint),
    /// For programs: tab-separated fields, no heading, no colours.
    Plain,
}

impl Form {
    /// The colours.
    pub fn paint(self) -> Paint {
        match self {
            Form::Terminal(paint) => paint,
            Form::Plain => Paint::new(false),
        }
    }
}

/// A brush, or a dry one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    wet: bool,
}

impl Paint {
    /// A brush that colours, or one that does not.
    pub const fn new(wet: bool) -> Self {
        Self { wet }
    }

    /// Whether it colours.
    pub fn is_wet(self) -> bool {
        self.wet
    }

    fn apply(self, style: Style, text: &str) -> String {
        if self.wet { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    /// What the sentence is about.
    pub fn strong(self, text: &str) -> String {
        self.apply(Style::new().bold(), text)
    }

    /// What matters least.
    pub fn faint(self, text: &str) -> String {
        self.apply(Style::new().dimmed(), text)
    }

    /// All is well.
    pub fn good(self, text: &str) -> String {
        self.apply(AnsiColor::Green.on_default(), text)
    }

    /// Look at this.
    pub fn warn(self, text: &str) -> String {
        self.apply(AnsiColor::Yellow.on_default(), text)
    }

    /// This went wrong.
    pub fn bad(self, text: &str) -> String {
        self.apply(AnsiColor::Red.on_default().bold(), text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_brush_leaves_no_trace() {
        assert_eq!(Paint::new(false).bad("x"), "x");
        assert_eq!(Paint::new(true).strong("x"), "\u{1b}[1mx\u{1b}[0m");
    }
}
