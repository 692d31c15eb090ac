package toolbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/telemetry"
)

// ErrNoResource is the error of a template's Loader for a URI without a resource.
var ErrNoResource = errors.New("no such resource")

// guard calls a function of an agent. The context also ends with the provider. A panic
// becomes an error, and every error an *Error.
func guard[R any](ctx context.Context, p *Provider, name string, call func(context.Context) (R, error)) (R, error) {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(context.Cause(p.ctx)) })()
	result, err := catch(inner, p, name, call)
	if err == nil {
		return result, nil
	}
	var none R
	return none, p.failure(ctx, name, err)
}

func catch[R any](ctx context.Context, p *Provider, name string, call func(context.Context) (R, error)) (result R, err error) {
	crash := fault.Catch(func() { result, err = call(ctx) })
	if crash == nil {
		return result, err
	}
	event := telemetry.Panicked(name, crash)
	event.Sender, event.SourceAgent, event.Target = p.source, p.source, p.source
	p.box.o.Telemetry.Emit(event)
	return result, failed(CodePanic, name, p.source, fmt.Errorf("%v", crash.Value), name+" crashed")
}

// failure converts the error of an agent's function.
func (p *Provider) failure(ctx context.Context, name string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, ErrNoResource):
		return resourceNotFound(name)
	case p.ctx.Err() != nil:
		return failed(CodeClosed, name, p.source, context.Cause(p.ctx), name+" was cut off")
	case ctx.Err() != nil:
		return failed(CodeCanceled, name, p.source, err, name+" was canceled")
	}
	return failed(CodeFailed, name, p.source, err, name+" failed")
}
