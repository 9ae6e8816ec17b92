package joined

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// detailed has more to say with %+v.
type detailed struct{}

func (*detailed) Error() string { return "short" }

func (d *detailed) Format(s fmt.State, verb rune) {
	if Whole(s, verb) {
		fmt.Fprint(s, "short\nand long")
		return
	}
	Print(s, verb, d.Error())
}

func TestErrorsPrintInOneLine(t *testing.T) {
	first, second := errors.New("first"), &detailed{}
	two := Errors(nil, first, nil, second)
	nested := Errorf("do %q: %w: %w", "it", Errors(two, fs.ErrExist), fs.ErrInvalid)
	for _, test := range []struct {
		format string
		err    error
		want   string
	}{
		{"%v", two, "first; short"}, {"%s", two, "first; short"}, {"%q", two, `"first; short"`}, {"%#v", two, "first; short"},
		{"%15v|", two, "   first; short|"}, {"%.5s", two, "first"},
		{"%+v", two, "first\nshort\nand long"},
		{"%v", nested, `do "it": first; short; file already exists: invalid argument`},
		{"%+v", nested, "do \"it\": first\nshort\nand long\nfile already exists: invalid argument"},
	} {
		expect.Same(t, test.format, fmt.Sprintf(test.format, test.err), test.want)
	}
	expect.Same(t, "Error", nested.Error(), fmt.Sprint(nested))
}

func TestErrorsAreFound(t *testing.T) {
	one := errors.New("one")
	expect.Same(t, "none", Errors(nil, nil), nil)
	expect.Same(t, "a single one", Errors(nil, one, nil) == one, true)
	expect.Same(t, "in a list", List(one, nil).(interface{ Unwrap() []error }).Unwrap(), []error{one})
	expect.Same(t, "a list of none", List(nil), nil)
	expect.Same(t, "behind a text", errors.Unwrap(Errorf("x: %w", one)) == one, true)
	err := Errorf("all: %w", Errors(one, &detailed{}, fs.ErrExist))
	expect.Is(t, err, one, fs.ErrExist)
	expect.Same(t, "found by its type", errors.As(err, new(*detailed)), true)
	expect.Same(t, "found though absent", errors.Is(err, fs.ErrInvalid), false)
}

// TestErrorsAreNotTheCallersSlice, which may change.
func TestErrorsAreNotTheCallersSlice(t *testing.T) {
	all := []error{errors.New("a"), errors.New("b")}
	err := Errors(all...)
	all[0] = errors.New("c")
	expect.Same(t, "text", err.Error(), "a; b")
}
