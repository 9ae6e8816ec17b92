package invoke

import (
	"context"
	"runtime"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Environ filters an environment for plugins. The result has PATH and the
// variables of base that allow names, and nothing else. A daemon's environment
// contains tokens and passwords, and a plugin is a foreign program.
//
// An entry of allow is a name, or a prefix followed by "*". The variables of the
// CNI protocol are dropped, whatever allow contains: inherited ones, for
// instance of a runtime that a plugin has started, belong to another request.
//
// The last of several values of a name wins. The result is sorted, so that it
// can be compared and logged. If PATH is missing or empty, a default is added
// (on Unix), because plugins run iptables, tc and others by name.
func Environ(base, allow []string) []string {
	fold := func(name string) string { return name }
	if runtime.GOOS == "windows" {
		fold = strings.ToUpper // names that differ in case are the same there
	}
	vars := map[string]string{} // folded name → entry
	for _, entry := range base {
		name, _, ok := strings.Cut(entry, "=")
		name = fold(name)
		if ok && name != "" && !isProtocol(name) && (name == "PATH" || isAllowed(name, allow, fold)) {
			vars[name] = entry
		}
	}
	if _, value, _ := strings.Cut(vars["PATH"], "="); value == "" {
		// Empty would mean the current directory.
		delete(vars, "PATH")
		if defaultPath != "" {
			vars["PATH"] = "PATH=" + defaultPath
		}
	}
	env := make([]string, 0, len(vars))
	for _, entry := range vars {
		env = append(env, entry)
	}
	slices.Sort(env)
	return env
}

func isAllowed(name string, allow []string, fold func(string) string) bool {
	return slices.ContainsFunc(allow, func(a string) bool {
		if prefix, ok := strings.CutSuffix(fold(a), "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return name == fold(a)
	})
}

// isProtocol reports whether a variable is one of those that the CNI
// specification 1.1.0 defines, under "Parameters". Any other variable with the
// prefix CNI_, such as CNI_NETNS_OVERRIDE of the reference plugins, is a setting
// of the machine, which allow can name.
func isProtocol(name string) bool {
	switch name {
	case "CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH":
		return true
	}
	return false
}

// Variable returns the value of a variable of an environment, or "" if it is not set.
func Variable(env []string, name string) string {
	for _, entry := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// WithVariable returns an environment in which a variable has a value.
func WithVariable(env []string, name, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return append(env, name+"="+value)
}

// TraceEnv returns the variables that make a plugin's spans children of the span
// in ctx: TRACEPARENT, and TRACESTATE and BAGGAGE if they are not empty. Without
// a valid span it returns nil. libcni's own executor passes the same, following
// OpenTelemetry's proposal 0258, "environment variables as context propagation
// carriers".
func TraceEnv(ctx context.Context) []string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
	var env []string
	// The proposal's names are the headers' of W3C Trace Context in upper case.
	for _, name := range []string{"traceparent", "tracestate"} {
		if value := headers.Get(name); value != "" {
			env = append(env, strings.ToUpper(name)+"="+value)
		}
	}
	if value := baggage.FromContext(ctx).String(); value != "" {
		env = append(env, "BAGGAGE="+value)
	}
	return env
}
