package netfilter

import "context"

type formKey struct{}

// form says which rules those of a configuration without a backend are.
type form struct {
	detected string
	any      bool
}

func formOf(ctx context.Context) form {
	f, _ := ctx.Value(formKey{}).(form)
	return f
}

// What [Detect] returns, and what the plugin firewall has detected before it asks.
const (
	DetectedIPTables  = "iptables"  // there is the program iptables
	DetectedNative    = "native"    // there is none
	DetectedFirewalld = "firewalld" // a firewalld runs, whose zone the addresses go to
)

// Detected returns what was detected for the attachment of the context, empty if
// that is not known. any reports whether a reference plugin may have made it, so
// that nobody knows; see [InAnyForm].
func Detected(ctx context.Context) (detected string, any bool) {
	f := formOf(ctx)
	return f.detected, f.any
}

// WithDetected returns a context for the CHECK or DEL, and the ADD, of an
// attachment for which Detect returned detected.
func WithDetected(ctx context.Context, detected string) context.Context {
	return context.WithValue(ctx, formKey{}, form{detected: detected})
}

// InAnyForm returns a context for the CHECK or DEL of an attachment that a
// reference plugin may have made. If no backend is named, nobody knows which
// one that chose: Check passes if the rules are there in any form. Remove deletes
// those of the native table; the rest is for [Find].
func InAnyForm(ctx context.Context) context.Context {
	return context.WithValue(ctx, formKey{}, form{any: true})
}
