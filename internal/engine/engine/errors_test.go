package engine

import (
	"errors"
	"strings"
	"testing"
)

func TestHintsAtArgumentsAndCapabilities(t *testing.T) {
	unknown := &Error{Op: "ADD", Network: "net", Plugin: "p", Code: 999, Msg: `ARGS: unknown args ["TIER=front"]`}
	if want := `; with WithArgs("IgnoreUnknown", "1") plugins ignore arguments that they do not know`; !strings.HasSuffix(unknown.Error(), want) {
		t.Errorf("got %q, want %q at the end", unknown, want)
	}
	for _, tt := range []struct {
		lacks []string
		err   error
		want  string
	}{
		{nil, nil, ""},
		{nil, errors.New("no capget"), ""},
		{[]string{"CAP_NET_ADMIN"}, nil, "; plugins need CAP_NET_ADMIN, which this process lacks"},
		{[]string{"CAP_NET_ADMIN", "CAP_SYS_ADMIN"}, nil, "; plugins need CAP_NET_ADMIN and CAP_SYS_ADMIN, which this process lacks"},
	} {
		if got := missing(tt.lacks, tt.err); got != tt.want {
			t.Errorf("%v, %v: got %q, want %q", tt.lacks, tt.err, got, tt.want)
		}
	}
}
