package cni

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/expect"
)

func TestPrecedence(t *testing.T) {
	dirs := []string{"/a", "/b/", "/c"}
	for _, tt := range []struct{ first, want []string }{
		{nil, nil},
		{[]string{"/a"}, nil},
		{[]string{"/a/", "/foreign", "/b"}, nil},
		{[]string{"/foreign"}, nil},
		{dirs, nil},
		{[]string{"/b"}, []string{"/b/"}},
		{[]string{"/foreign", "/c/", "/c", "/a"}, []string{"/c", "/a"}},
	} {
		got := precedence(dirs, tt.first)
		expect.Same(t, fmt.Sprint(tt.first), got, tt.want)
		expect.Same(t, fmt.Sprint("order with ", tt.first), engine.Ordered(dirs, got), engine.Ordered(dirs, tt.first))
	}
}
