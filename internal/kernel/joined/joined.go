// Package joined joins errors as package errors does, but prints them in one line: logs and
// the standard error of programs have a line for each event. The format %+v has a line for
// each error, and all that the errors themselves print with it.
package joined

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Errors returns an error that wraps those that are not nil. Its text has them one after the
// other, separated by semicolons. A single one is returned unchanged, so that a caller gets
// its type. Without any, Errors returns nil.
func Errors(errs ...error) error {
	err := List(errs...)
	if l, ok := err.(*list); ok && len(l.errs) == 1 {
		return l.errs[0]
	}
	return err
}

// List is Errors for a caller who asks for all of them with Unwrap() []error, also if there
// is one.
func List(errs ...error) error {
	all := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(all) == 0 {
		return nil
	}
	return &list{all}
}

// list is several errors.
type list struct{ errs []error }

// Unwrap returns the errors.
func (l *list) Unwrap() []error { return l.errs }

// Error returns the errors in one line, unless one of them has several.
func (l *list) Error() string {
	texts := make([]string, len(l.errs))
	for i, err := range l.errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Format prints each error in lines of its own with %+v.
func (l *list) Format(s fmt.State, verb rune) {
	if !Whole(s, verb) {
		Print(s, verb, l.Error())
		return
	}
	for i, err := range l.errs {
		if i > 0 {
			_, _ = io.WriteString(s, "\n")
		}
		fmt.Fprintf(s, "%+v", err)
	}
}

// Errorf is fmt.Errorf, whose error prints those that it wraps with %+v if it is printed so.
func Errorf(format string, args ...any) error {
	w := wrapped{fmt.Errorf(format, args...), format, args}
	if all, ok := w.error.(interface{ Unwrap() []error }); ok {
		return &several{w, all.Unwrap()}
	}
	return &w
}

// wrapped is an error of fmt.Errorf, with what it was made of.
type wrapped struct {
	error
	format string
	args   []any
}

// Unwrap returns the error that is wrapped.
func (w *wrapped) Unwrap() error { return errors.Unwrap(w.error) }

// several is an error of fmt.Errorf that wraps more than one.
type several struct {
	wrapped
	errs []error
}

// Unwrap returns the errors that are wrapped.
func (s *several) Unwrap() []error { return s.errs }

// Format prints wrapped errors with %+v if it is asked for that.
func (w *wrapped) Format(s fmt.State, verb rune) {
	if !Whole(s, verb) {
		Print(s, verb, w.Error())
		return
	}
	fmt.Fprintf(s, strings.ReplaceAll(w.format, "%w", "%+v"), w.args...)
}

// Whole reports whether an error's Format is called for %+v.
func Whole(s fmt.State, verb rune) bool { return verb == 'v' && s.Flag('+') }

// Print formats a text as fmt does that of an error without a Format.
func Print(s fmt.State, verb rune, text string) {
	fmt.Fprintf(s, fmt.FormatString(plain{s}, verb), text)
}

// plain is a fmt.State without the flags that only structs understand.
type plain struct{ fmt.State }

// Flag reports whether a flag is set that concerns a text.
func (p plain) Flag(c int) bool { return c != '+' && c != '#' && p.State.Flag(c) }
