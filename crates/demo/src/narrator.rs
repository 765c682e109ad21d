//! How a demo prints: headings, sentences, drawings. Plain text in pipes.

use std::io::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};

/// Columns of a drawn timeline.
const WIDTH: usize = 60;

/// Prints what happens in a demo, line by line.
pub struct Narrator {
    to: Box<dyn Write>,
    colours: bool,
}

/// What something is to the listener.
#[derive(Clone, Copy)]
pub(crate) enum Tone {
    Plain,
    Faint,
    Good,
    Bad,
}

/// One stretch of a timeline.
pub(crate) struct Stretch {
    pub from: Duration,
    pub to: Duration,
    pub mark: char,
    pub tone: Tone,
}

impl Narrator {
    /// Tells it there, in colours or not.
    pub fn new(to: Box<dyn Write>, colours: bool) -> Narrator {
        Narrator { to, colours }
    }

    /// A closed output does not stop the demo: it is also a test.
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.to, "{text}");
        let _ = self.to.flush();
    }

    fn paint(&self, tone: Tone, text: &str) -> String {
        let style = match tone {
            Tone::Plain => Style::new(),
            Tone::Faint => Style::new().dimmed(),
            Tone::Good => AnsiColor::Green.on_default(),
            Tone::Bad => AnsiColor::Red.on_default().bold(),
        };
        if self.colours { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    pub(crate) fn title(&mut self, name: &str, about: &str) {
        let strong = Style::new().bold();
        let name = if self.colours { format!("{strong}{name}{strong:#}") } else { name.to_owned() };
        self.line(&format!("{name}: {about}"));
    }

    pub(crate) fn part(&mut self, heading: &str) {
        let strong = Style::new().bold();
        let heading = if self.colours { format!("{strong}{heading}{strong:#}") } else { heading.to_owned() };
        self.line(&format!("\n{heading}"));
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.line(&format!("  {text}"));
    }

    pub(crate) fn aside(&mut self, text: &str) {
        let text = self.paint(Tone::Faint, text);
        self.line(&format!("  {text}"));
    }

    pub(crate) fn good(&mut self, text: &str) {
        let mark = self.paint(Tone::Good, "✓");
        self.line(&format!("  {mark} {text}"));
    }

    pub(crate) fn bad(&mut self, text: &str) {
        let mark = self.paint(Tone::Bad, "✗");
        self.line(&format!("  {mark} {text}"));
    }

    /// Draws who did what when, over one axis of time that begins at zero.
    pub(crate) fn timeline(&mut self, rows: &[(&str, Vec<Stretch>)]) {
        let names = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let end = rows.iter().flat_map(|(_, row)| row).map(|stretch| stretch.to).max().unwrap_or_default();
        let end = end.max(Duration::from_millis(1));
        for (name, row) in rows {
            let mut cells = vec![(' ', Tone::Plain); WIDTH];
            for stretch in row {
                let (from, to) = (column(stretch.from, end), column(stretch.to, end));
                for cell in cells.iter_mut().take(to + 1).skip(from) {
                    *cell = (stretch.mark, stretch.tone);
                }
            }
            let drawn: String =
                cells.iter().map(|(mark, tone)| self.paint(*tone, &mark.to_string())).collect();
            self.line(&format!("  {name:names$} {drawn}"));
        }
        let label = seconds(end);
        self.line(&format!("  {:names$} 0 s{:>width$}", "", label, width = WIDTH - 3));
    }

    /// Draws how many fell into each slot of time.
    pub(crate) fn histogram(&mut self, name: &str, slots: &[usize], tone: Tone) {
        const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = slots.iter().copied().max().unwrap_or(0).max(1);
        let drawn: String = slots
            .iter()
            .map(|count| {
                // Whatever happened at all is shown.
                let level = if *count == 0 { 0 } else { (count * 8).div_ceil(most) };
                LEVELS[level.min(8)]
            })
            .collect();
        let drawn = self.paint(tone, &drawn);
        self.line(&format!("  {name:<16} {drawn}"));
    }
}

fn column(at: Duration, end: Duration) -> usize {
    let share = at.as_secs_f64() / end.as_secs_f64();
    ((share * WIDTH as f64) as usize).min(WIDTH - 1)
}

/// A length of time for people.
pub(crate) fn seconds(length: Duration) -> String {
    match length.as_millis() {
        short @ 0..1_000 => format!("{short} ms"),
        _ => format!("{:.1} s", length.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no writer panics").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_timeline_is_as_long_as_its_last_stretch() {
        let paper = Paper::default();
        let mut narrator = Narrator::new(Box::new(paper.clone()), false);
        let stretch = |from, to| Stretch {
            from: Duration::from_secs(from),
            to: Duration::from_secs(to),
            mark: '█',
            tone: Tone::Good,
        };
        narrator.timeline(&[("A", vec![stretch(0, 3)]), ("B", vec![stretch(3, 6)])]);
        let text = String::from_utf8(paper.0.lock().expect("no writer panics").clone()).expect("text");
        let filled = |row: usize| text.lines().nth(row).expect("a row").matches('█').count();
        assert_eq!((filled(0), filled(1)), (31, 30), "{text}");
        assert!(text.ends_with("6.0 s\n"), "{text}");
    }
}
