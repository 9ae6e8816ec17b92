package config

import (
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Flags are the keys that the command line sets. They win over the file, also over a later one.
type Flags struct{ set []setting }

// setting is a key with its text on the command line.
type setting struct {
	key  Key
	text string
}

// Register adds a flag for each key.
func (f *Flags) Register(to *flag.FlagSet) {
	for _, k := range Keys() {
		to.Var(&flagValue{f, k}, k.Name, k.Doc)
	}
}

// apply sets the keys in a configuration.
func (f *Flags) apply(c *Config) {
	for _, s := range f.set {
		// Set has accepted the text.
		if err := fromText(s.text, s.key.at(c)); err != nil {
			panic(err)
		}
	}
}

// flagValue is a key as a flag.Value.
type flagValue struct {
	of  *Flags
	key Key
}

// Set notes the text of a flag, if its key can have that.
func (v *flagValue) Set(text string) error {
	var c Config
	if err := fromText(text, v.key.at(&c)); err != nil {
		return err
	}
	v.of.set = append(v.of.set, setting{v.key, text})
	return nil
}

// String returns nothing: WriteKeys prints the defaults.
func (v *flagValue) String() string { return "" }

// IsBoolFlag has the package flag accept the flag without a value.
func (v *flagValue) IsBoolFlag() bool {
	var c Config
	_, ok := v.key.at(&c).(*bool)
	return ok
}

// WriteKeys writes a line for each key, for --help.
func WriteKeys(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	c := Default()
	for _, k := range Keys() {
		live := "restart"
		if k.Live {
			live = "live"
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", k.Name, dash(k.Value(&c)), live, k.Doc)
	}
	return table.Flush()
}

// Markdown returns the same as a table for the documentation.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| key | default | live | meaning |\n|---|---|---|---|\n")
	c := Default()
	for _, k := range Keys() {
		live := ""
		if k.Live {
			live = "yes"
		}
		value := dash(k.Value(&c))
		if value != "-" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, value, live, k.Doc)
	}
	return b.String()
}

// dash stands for nothing.
func dash(value string) string {
	if value == "" {
		return "-"
	}
	return value
}
