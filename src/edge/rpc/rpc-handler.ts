import type { DescService } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { createValidateInterceptor } from "@connectrpc/validate";
import type { Handler } from "../http/sockets.ts";
import { createDirect, type DirectOptions } from "./direct.ts";
import type { Errors } from "./errors.ts";

/** Where services are added. */
export interface Routes {
  service<Service extends DescService>(service: Service, impl: Partial<ServiceImpl<Service>>): Routes;
}

/** Answers rpcs: directly in the forms that most clients use, by Connect's router in the others. */
export function createRpcHandler({
  routes,
  ...options
}: DirectOptions & { errors: Errors; routes: (routes: Routes) => void }): Handler {
  const { gate, validator, errors, log: _, ...settings } = options;
  const direct = createDirect(options);
  const others = connectNodeAdapter({
    ...settings,
    interceptors: [errors.interceptor, createValidateInterceptor({ validator })],
    requestGate(context) {
      try {
        gate(context);
      } catch (error) {
        throw errors.toConnectError(error, context.method.name, context.signal);
      }
    },
    routes(router) {
      const both: Routes = {
        service(service, impl) {
          router.service(service, impl);
          direct.service(service, impl);
          return both;
        },
      };
      routes(both);
    },
  });
  return (request, response) => {
    if (!direct.answers(request, response)) others(request, response);
  };
}
