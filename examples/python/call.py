import os

import grpc
from opencode.tool.v1 import tool_service_pb2, tool_service_pb2_grpc

address = os.environ.get("TOOLGATE_URL", "http://127.0.0.1:7420").removeprefix("http://")
metadata = [("authorization", f"Bearer {os.environ['TOOLGATE_TOKEN']}")]
tools = tool_service_pb2_grpc.ToolServiceStub(grpc.insecure_channel(address))
request = tool_service_pb2.ExecuteToolRequest(tool="echo", input={"text": "hello"})
for response in tools.ExecuteTool(request, metadata=metadata):
    if response.event.HasField("part"):
        print(response.event.seq, response.event.part.WhichOneof("state"))
