package screens

import "context"

type viewOnlyKey struct{}

// WithViewOnly returns a context of a request whose sender may look at the screens and change nothing.
func WithViewOnly(ctx context.Context) context.Context {
	return context.WithValue(ctx, viewOnlyKey{}, true)
}

// ViewOnly reports whether the sender of a request may change nothing.
func ViewOnly(ctx context.Context) bool {
	only, _ := ctx.Value(viewOnlyKey{}).(bool)
	return only
}
