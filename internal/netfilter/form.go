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

// The results of [Detect], and of the plugin firewall, which looks for a
// firewalld before it asks Detect.
const (
	DetectedIPTables  = "iptables"  // there is the program iptables
	DetectedNative    = "native"    // there is none
	DetectedFirewalld = "firewalld" // a firewalld runs, whose zone the addresses go to
)

// Detected returns the backend that was detected for the attachment of the
// context, or "" if it is not known. any reports whether a reference plugin may
// have made the rules, so that nobody knows the backend; see [InAnyForm].
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
