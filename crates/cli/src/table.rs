//! Plain tables: a header, aligned columns, two blanks between them.

/// How a column is aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table that is filled row by row.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; cells that are missing are empty, those too many are left out.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().take(self.columns.len()).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// The whole table as text without a line end.
    pub fn text(&self) -> String {
        let header = self.columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&header).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|index| lines.iter().map(|line| line[index].chars().count()).max().unwrap_or(0))
            .collect();
        let texts: Vec<String> = lines.iter().map(|line| self.line(line, &widths)).collect();
        texts.join("\n")
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let padded: Vec<String> = cells
            .iter()
            .zip(widths)
            .zip(&self.columns)
            .map(|((cell, width), (_, align))| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            })
            .collect();
        padded.join("  ").trim_end().to_owned()
    }
}

/// A bar of `width` characters, filled by `share` of 1.
pub fn bar(share: f64, width: usize) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    // Something above zero shows, and only the whole fills all.
    let filled = match (share * width as f64).round() as usize {
        0 if share > 0.0 => 1,
        filled if filled >= width && share < 1.0 => width.saturating_sub(1),
        filled => filled.min(width),
    };
    format!("[{}{}]", "#".repeat(filled), "-".repeat(width - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_their_cells() {
        let mut table = Table::new(&[("NAME", Align::Left), ("SIZE", Align::Right)]);
        table.row(["ümlaut".to_owned(), "1 B".to_owned(), "too many".to_owned()]);
        table.row(["a".to_owned()]);
        table.row(["b".to_owned(), "12.5 MiB".to_owned()]);
        assert_eq!(table.text(), "NAME        SIZE\nümlaut       1 B\na\nb       12.5 MiB");
    }

    #[test]
    fn a_bar_shows_a_little_as_something_and_nearly_all_as_not_all() {
        assert_eq!(bar(0.0, 4), "[----]");
        assert_eq!(bar(0.001, 4), "[#---]");
        assert_eq!(bar(0.5, 4), "[##--]");
        assert_eq!(bar(0.99, 4), "[###-]");
        assert_eq!(bar(1.0, 4), "[####]");
        assert_eq!(bar(7.0, 4), "[####]");
        assert_eq!(bar(f64::NAN, 4), "[----]");
    }
}
