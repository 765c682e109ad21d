//! Rows of text: aligned under a heading for people, tab-separated for programs.

use super::paint::Form;

/// A table with a fixed number of columns.
#[derive(Debug)]
pub struct Table {
    heading: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table. A heading that begins with `>` marks a column of numbers, which are aligned at their
    /// ends.
    pub fn new(heading: &[&'static str]) -> Self {
        Self { heading: heading.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, one cell per column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.heading.len(), "a row has one cell per column");
        self.rows.push(cells);
    }

    /// The table as text.
    pub fn render(&self, form: Form) -> String {
        match form {
            Form::Plain => self.rows.iter().map(|row| row.join("\t") + "\n").collect(),
            Form::Terminal(_) if self.rows.is_empty() => String::new(),
            Form::Terminal(paint) => {
                let titles: Vec<String> =
                    self.heading.iter().map(|title| title.trim_start_matches('>').to_owned()).collect();
                let heading = paint.faint(&self.align(&titles));
                let rows = self.rows.iter().map(|row| self.align(row));
                std::iter::once(heading).chain(rows).map(|line| line + "\n").collect()
            }
        }
    }

    fn align(&self, cells: &[String]) -> String {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let title = self.heading[column];
            let widest = self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            let width = widest.max(title.trim_start_matches('>').len());
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            if column > 0 {
                line.push_str("  ");
            }
            if title.starts_with('>') {
                line.push_str(&padding);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.push_str(&padding);
            }
        }
        line.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Paint;
    use super::*;
    use expect_test::expect;

    fn table() -> Table {
        let mut table = Table::new(&["RESOURCE", ">TOKEN", "HOLDER"]);
        table.row(["settlement/cron", "7", "node-a"].map(String::from));
        table.row(["büro", "12345678", "b"].map(String::from));
        table
    }

    #[test]
    fn eyes_get_columns() {
        expect![[r#"
            RESOURCE            TOKEN  HOLDER
            settlement/cron         7  node-a
            büro             12345678  b
        "#]]
        .assert_eq(&table().render(Form::Terminal(Paint::new(false))));
    }

    #[test]
    fn programs_get_tabs_and_no_heading() {
        assert_eq!(table().render(Form::Plain), "settlement/cron\t7\tnode-a\nbüro\t12345678\tb\n");
    }

    #[test]
    fn nothing_to_show_is_nothing() {
        assert_eq!(Table::new(&["A"]).render(Form::Terminal(Paint::new(false))), "");
        assert_eq!(Table::new(&["A"]).render(Form::Plain), "");
    }
}
