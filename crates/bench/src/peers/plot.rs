//! Plots as SVG text: bars on a logarithmic scale, because the results differ by orders of magnitude. The
//! colours work on light and dark pages.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 230.0;
const RIGHT: f64 = 110.0;
const ROW: f64 = 20.0;
const GROUP_GAP: f64 = 26.0;

/// Bars in groups: one group per row of the table, one bar per store.
pub struct Bars {
    /// What is shown, and in which unit.
    pub title: String,
    /// The groups: their titles, and in each the bars' names and values.
    pub groups: Vec<(String, Vec<(String, f64)>)>,
}

impl Bars {
    /// The whole picture.
    pub fn svg(&self) -> String {
        let values = || self.groups.iter().flat_map(|(_, bars)| bars.iter().map(|(_, value)| *value));
        let positive = || values().filter(|value| *value > 0.0);
        // One order of magnitude below the smallest, so that its bar can be seen.
        let low = positive().fold(f64::INFINITY, f64::min).log10().floor() - 0.3;
        let high = positive().fold(f64::MIN_POSITIVE, f64::max).log10().max(low + 1.0);
        let rows: usize = self.groups.iter().map(|(_, bars)| bars.len()).sum();
        let height = 40.0 + rows as f64 * ROW + self.groups.len() as f64 * GROUP_GAP;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<title>{}</title>\n\
             <style>text{{fill:#57606a}}.h{{font-weight:600;font-size:14px}}.n{{font-weight:600}}</style>\n\
             <text class=\"h\" x=\"8\" y=\"20\">{}</text>\n",
            escaped(&self.title),
            escaped(&self.title)
        );
        let mut y = 34.0;
        for (title, bars) in &self.groups {
            y += GROUP_GAP - 10.0;
            writeln!(out, "<text class=\"n\" x=\"8\" y=\"{y}\">{}</text>", escaped(title))
                .expect("a string takes every write");
            y += 10.0 - 4.0;
            for (name, value) in bars {
                let share = if *value > 0.0 { (value.log10() - low) / (high - low) } else { 0.0 };
                let width = (share.clamp(0.01, 1.0) * (WIDTH - LEFT - RIGHT)).round();
                writeln!(
                    out,
                    "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
                     <rect x=\"{LEFT}\" y=\"{}\" width=\"{width}\" height=\"{}\" rx=\"2\" fill=\"{}\"/>\
                     <text x=\"{}\" y=\"{}\">{}</text>",
                    LEFT - 8.0,
                    y + 13.0,
                    escaped(name),
                    y + 3.0,
                    ROW - 6.0,
                    colour(name),
                    LEFT + width + 6.0,
                    y + 13.0,
                    number(*value),
                )
                .expect("a string takes every write");
                y += ROW;
            }
        }
        out + "</svg>\n"
    }
}

fn colour(name: &str) -> &'static str {
    match name {
        "tenure" => "#1a7f64",
        "etcd" => "#4184e4",
        "zookeeper" => "#c69026",
        "redis" => "#cf5b56",
        _ => "#8b949e",
    }
}

/// A number as people read it.
pub fn number(value: f64) -> String {
    match value {
        value if value >= 999_500.0 => format!("{:.2} M", value / 1e6),
        value if value >= 9_999.5 => format!("{:.0} k", value / 1e3),
        value if value >= 999.5 => format!("{:.1} k", value / 1e3),
        value if value >= 99.5 => format!("{value:.0}"),
        value if value >= 9.95 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.284, "0.28"),
            (12.34, "12.3"),
            (134.2, "134"),
            (3_900.0, "3.9 k"),
            (43_210.0, "43 k"),
            (1_270_000.0, "1.27 M"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_longer_bar_is_a_larger_value() {
        let bars = vec![("tenure".to_owned(), 40_000.0), ("etcd".to_owned(), 4_000.0)];
        let svg = Bars { title: "a < b".into(), groups: vec![("cycles".into(), bars)] }.svg();
        let widths: Vec<f64> =
            svg.split("width=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok()).collect();
        assert!(widths[0] > widths[1], "{svg}");
        assert!(svg.contains("a &lt; b"));
    }
}
