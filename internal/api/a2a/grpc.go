package a2a

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	a2agrpc03 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	a2agrpc10 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/log"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhub/parley/internal/base/budget"
	"github.com/parleyhub/parley/internal/base/caller"
	"github.com/parleyhub/parley/internal/hub"
)

// GRPCOptions replace the HTTP middleware, which gRPC does not have.
type GRPCOptions struct {
	// Authorize reports whether calls of a caller with a bearer token, "" for none, are allowed. Nil allows all calls.
	Authorize func(who caller.Caller, token string) bool
	// Memory is what large requests share with other interfaces; nil means that they are not bounded.
	Memory *budget.Budget
}

const (
	// maxStreams bounds the calls of a connection at the same time.
	maxStreams = 100
	// streamWindow and connWindow are what a client may send before it is read, in bytes. Fixed windows do not grow.
	streamWindow = 64 << 10
	connWindow   = 1 << 20
	// smallCall is the size of requests that need no reservation, and callCost how many times its size a large one holds.
	smallCall = 16 << 10
	callCost  = 4
)

// NewGRPC returns a gRPC server with the services of both versions. The caller serves and stops it.
func (s *Server) NewGRPC(opts GRPCOptions) *grpc.Server {
	g := grpcGuard{server: s, authorize: opts.Authorize, memory: opts.Memory}
	out := grpc.NewServer(
		grpc.Creds(callerCredentials{insecure.NewCredentials()}),
		grpc.MaxRecvMsgSize(int(s.opts.MaxBody)),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.ConnectionTimeout(20*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: s.opts.WriteTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(g.unary),
		grpc.StreamInterceptor(g.stream),
	)
	a2agrpc10.NewHandler(s.handler).RegisterWith(out)
	a2agrpc03.NewHandler(s.handler).RegisterWith(out)
	return out
}

// grpcGuard checks each call before the binding.
type grpcGuard struct {
	server    *Server
	authorize func(caller.Caller, string) bool
	memory    *budget.Budget // nil for no bound
}

// callerCredentials determine the caller of each connection once. They encrypt nothing.
type callerCredentials struct {
	credentials.TransportCredentials
}

// callerInfo is what is known of a connection.
type callerInfo struct {
	credentials.CommonAuthInfo
	caller caller.Caller
}

// AuthType implements credentials.AuthInfo.
func (callerInfo) AuthType() string { return "caller" }

// ServerHandshake implements credentials.TransportCredentials.
func (callerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, callerInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, caller.Of(conn)}, nil
}

// Clone implements credentials.TransportCredentials.
func (c callerCredentials) Clone() credentials.TransportCredentials { return c }

// callerOf returns who made the connection of a call.
func callerOf(ctx context.Context) caller.Caller {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(callerInfo); ok {
			return info.caller
		}
	}
	return caller.Caller{}
}

func (g grpcGuard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer g.recover(info.FullMethod, &err)
	if ctx, err = g.admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	share, err := g.reserve(ctx, req)
	if err != nil {
		return nil, err
	}
	defer share.Release()
	return handler(ctx, req)
}

// reserve reserves memory for a request, nothing for a small one.
func (g grpcGuard) reserve(ctx context.Context, req any) (*budget.Share, error) {
	message, ok := req.(proto.Message)
	if !ok || g.memory == nil {
		return nil, nil
	}
	size := proto.Size(message)
	if size <= smallCall {
		return nil, nil
	}
	share, err := g.memory.Acquire(ctx, callCost*int64(size))
	if errors.Is(err, budget.ErrSpent) {
		return nil, status.Error(codes.ResourceExhausted, "too many large requests at once: send it again after a second, and fewer large requests at once")
	}
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return share, nil
}

func (g grpcGuard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer g.recover(info.FullMethod, &err)
	ctx, err := g.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	stream := &scopedStream{ServerStream: ss, ctx: ctx, guard: g}
	defer stream.release()
	return handler(srv, stream)
}

// admit checks token and version and sets the call's scope.
func (g grpcGuard) admit(ctx context.Context, method string) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx) // may be missing
	if g.authorize != nil && !g.authorize(callerOf(ctx), bearerToken(md.Get("authorization"))) {
		return nil, status.Error(codes.Unauthenticated, "a valid bearer token is required in the metadata authorization; without one only the hub's own user may call")
	}
	asked := ""
	if values := md.Get(versionParam); len(values) > 0 {
		asked = strings.TrimSpace(values[0])
	}
	version := v10
	if strings.HasPrefix(method, "/a2a.v1.") { // 0.3's package; 1.0's is lf.a2a.v1
		version = v03
	}
	requested, err := parseVersion(asked)
	if err == nil && requested != "" && requested != version {
		err = fault(a2a.ErrVersionNotSupported, "this gRPC service has A2A version "+string(version))
	}
	if err != nil {
		return nil, grpcError(err)
	}
	ctx = hub.WithSender(log.AttachLogger(ctx, g.server.log), grpcSender(ctx, md))
	return withScope(ctx, scope{base: g.server.opts.BaseURL, version: version}), nil
}

// grpcSender returns who makes a call. gRPC has no Host to check, but pages cannot call it.
func grpcSender(ctx context.Context, md metadata.MD) hub.Sender {
	address := ""
	if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
	}
	direct := callerOf(ctx).Kind != caller.Other && len(md.Get("forwarded")) == 0 && len(md.Get("x-forwarded-for")) == 0 && len(md.Get("via")) == 0
	sender := hub.ClientAt(address, direct)
	sender.Label = strings.Join(md.Get("user-agent"), " ")
	return sender
}

func bearerToken(values []string) string {
	if len(values) != 1 {
		return ""
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func grpcError(err error) error {
	st := status.New(codes.FailedPrecondition, err.Error())
	detailed, dErr := st.WithDetails(&errdetails.ErrorInfo{Reason: a2a.ErrorReason(err), Domain: a2a.ProtocolDomain})
	if dErr != nil {
		return st.Err()
	}
	return detailed.Err()
}

// recover converts a panic to an internal error. gRPC itself would end the process.
func (g grpcGuard) recover(method string, err *error) {
	if p := recover(); p != nil {
		g.server.log.Error("request panicked", "method", method, "panic", p)
		*err = status.Error(codes.Internal, a2a.ErrInternalError.Error())
	}
}

// scopedStream is a stream whose context has the scope. It reserves memory for what it receives until the call ends.
type scopedStream struct {
	grpc.ServerStream
	ctx    context.Context
	guard  grpcGuard
	shares []*budget.Share
}

// Context implements grpc.ServerStream.
func (s *scopedStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *scopedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	share, err := s.guard.reserve(s.ctx, m)
	if share != nil {
		s.shares = append(s.shares, share)
	}
	return err
}

func (s *scopedStream) release() {
	for _, share := range s.shares {
		share.Release()
	}
}
