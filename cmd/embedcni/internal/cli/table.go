package cli

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// cell is a field of a table.
type cell struct {
	text  string
	color color
}

// row returns cells without color.
func row(texts ...string) (cells []cell) {
	for _, text := range texts {
		cells = append(cells, cell{text: text})
	}
	return cells
}

// table is for people: columns of equal width, two spaces apart. text/tabwriter would count
// the escapes of colors as letters.
type table struct {
	header []string
	rows   [][]cell
}

// add adds a line. The lines of joined errors become one.
func (t *table) add(cells ...cell) {
	for i := range cells {
		cells[i].text = strings.ReplaceAll(strings.TrimSpace(cells[i].text), "\n", "; ")
	}
	t.rows = append(t.rows, cells)
}

// format returns the lines of the table.
func (t *table) format(colors bool) string {
	lines := append([][]cell{row(t.header...)}, t.rows...)
	widths := make([]int, len(t.header))
	for _, line := range lines {
		for i, c := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		pad := 0
		for i, c := range line {
			text := dash(c.text)
			b.WriteString(strings.Repeat(" ", pad))
			pad = widths[i] - utf8.RuneCountInString(text) + 2
			if colors {
				text = paint(c.color, text)
			}
			b.WriteString(text)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// dash stands for nothing, so that every line has every column.
func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// print writes a value: for programs as JSON, for people as human does.
func (a *app) print(value any, human func() string) error {
	text := ""
	if a.flags.json {
		var b strings.Builder
		encoder := json.NewEncoder(&b)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(value); err != nil {
			return err
		}
		text = b.String()
	} else {
		text = human()
	}
	_, err := a.Out.Write([]byte(text))
	return err
}
