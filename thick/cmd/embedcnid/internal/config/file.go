package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agext/levenshtein"
	"sigs.k8s.io/yaml"
)

// Load returns the configuration of a file, with the flags over it. Without a path it is that
// of the flags. The error joins one for each mistake.
func Load(path string, flags *Flags) (Config, error) {
	c := Default()
	if path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return c, err
		}
		if err := c.Parse(data); err != nil {
			return c, errors.Join(inFile(path, err)...)
		}
	}
	flags.apply(&c)
	return c, c.validate()
}

// inFile names the file in each of the errors that are joined.
func inFile(path string, err error) (all []error) {
	for _, one := range Findings(err) {
		all = append(all, fmt.Errorf("%s: %w", path, one))
	}
	return all
}

// Findings returns the errors that an error of this package joins.
func Findings(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// Parse sets what a file has, in YAML or JSON. The error joins one for each mistake:
// a key that is not known or is there twice, and a value that its key cannot have.
func (c *Config) Parse(data []byte) error {
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil && json.Valid(data) && bytes.ContainsRune(data, '\t') {
		// YAML knows no tabs between the tokens of JSON; in its strings there are none.
		asJSON, err = yaml.YAMLToJSONStrict(bytes.ReplaceAll(data, []byte("\t"), []byte(" ")))
	}
	if err != nil {
		return err
	}
	return errors.Join(c.section("", asJSON)...)
}

// section sets the keys of a section, whose name ends with a dot, or of the file, without one.
func (c *Config) section(name string, raw json.RawMessage) (mistakes []error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		of := "the file"
		if name != "" {
			of = strings.TrimSuffix(name, ".")
		}
		return []error{fmt.Errorf("%s: want keys with values, not %s", of, raw)}
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		full := name + field
		key, known := find(full)
		switch {
		case known:
			if err := decode(fields[field], key.at(c)); err != nil {
				mistakes = append(mistakes, fmt.Errorf("%s: %w", full, err))
			}
		case isSection(full):
			mistakes = append(mistakes, c.section(full+".", fields[field])...)
		default:
			mistakes = append(mistakes, unknown(full))
		}
	}
	return mistakes
}

func isSection(name string) bool {
	return slices.ContainsFunc(Keys(), func(k Key) bool { return strings.HasPrefix(k.Name, name+".") })
}

// unknown is the mistake of a key that does not exist, with the one that was most likely
// meant.
func unknown(name string) error {
	const most = 3 // letters: beyond that it is another word
	best, distance := "", most+1
	section, field := split(name)
	for _, k := range Keys() {
		d := levenshtein.Distance(strings.ToLower(name), strings.ToLower(k.Name), nil)
		if of, as := split(k.Name); of != section { // it may be in the wrong section
			d = min(d, 1+levenshtein.Distance(strings.ToLower(field), strings.ToLower(as), nil))
		}
		if d < distance && d < len(field) {
			best, distance = k.Name, d
		}
	}
	if best == "" {
		return fmt.Errorf("%s: there is no such key; --help lists them", name)
	}
	return fmt.Errorf("%s: there is no such key; do you mean %s?", name, best)
}

// split returns the section of a key, which may be empty, and its name in that.
func split(name string) (section, field string) {
	i := strings.LastIndexByte(name, '.')
	return name[:max(i, 0)], name[i+1:]
}

// decode sets a field from JSON. null leaves the default.
func decode(raw json.RawMessage, field any) error {
	wrong := fmt.Errorf("want %s, not %s", kindOf(field), raw)
	if d, ok := field.(*time.Duration); ok {
		text := short(*d)
		if err := json.Unmarshal(raw, &text); err != nil {
			return wrong
		}
		parsed, err := time.ParseDuration(text)
		if err != nil {
			return wrong
		}
		*d = parsed
		return nil
	}
	if err := json.Unmarshal(raw, field); err != nil {
		return wrong
	}
	return nil
}

// fromText sets a field from the text of a flag.
func fromText(text string, field any) (err error) {
	switch f := field.(type) {
	case *string:
		*f = text
	case *[]string:
		*f = nil
		if text != "" {
			*f = strings.Split(text, ",")
		}
	case *bool:
		*f, err = strconv.ParseBool(text)
	case *int:
		*f, err = strconv.Atoi(text)
	case *int64:
		*f, err = strconv.ParseInt(text, 10, 64)
	case *time.Duration:
		*f, err = time.ParseDuration(text)
	}
	if err != nil {
		return fmt.Errorf("want %s", kindOf(field))
	}
	return nil
}

// kindOf names the values that a field can have.
func kindOf(field any) string {
	switch field.(type) {
	case *string:
		return "a text"
	case *[]string:
		return "a list of texts, such as [a, b]"
	case *bool:
		return "true or false"
	case *int, *int64:
		return "a number"
	case *time.Duration:
		return "a time, such as 10s or 1m30s"
	}
	panic(fmt.Sprintf("a field of type %T", field))
}
