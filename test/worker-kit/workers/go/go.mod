module worker

go 1.24.0

require toolgate v0.0.0

require (
	buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go v1.36.6-20250425153114-8976f5be98c1.1 // indirect
	connectrpc.com/connect v1.19.1 // indirect
	github.com/google/jsonschema-go v0.4.3 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace toolgate => ../../../../sdk/go
