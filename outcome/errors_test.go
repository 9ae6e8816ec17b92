package outcome

import (
	"errors"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestHintsAtArgumentsAndCapabilities(t *testing.T) {
	unknown := &Error{Op: "ADD", Network: "net", Plugin: "p", Code: 999, Msg: `ARGS: unknown args ["TIER=front"]`}
	want := `; with WithArgs("IgnoreUnknown", "1") plugins ignore arguments that they do not know`
	expect.That(t, strings.HasSuffix(unknown.Error(), want), "got %q, want %q at the end", unknown, want)
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
		got := missing(tt.lacks, tt.err)
		expect.That(t, got == tt.want, "%v, %v: got %q, want %q", tt.lacks, tt.err, got, tt.want)
	}
}
