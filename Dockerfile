FROM node:24-bookworm-slim AS dependencies
WORKDIR /app
COPY package.json package-lock.json ./
# The image brings Node, so the optional packages that would are left out.
RUN npm ci --omit=dev --omit=optional --ignore-scripts

FROM node:24-bookworm-slim AS console
WORKDIR /app
COPY package.json package-lock.json tsconfig.json ./
RUN npm ci --ignore-scripts
COPY gen gen
COPY src/console src/console
RUN npm run build

FROM node:24-bookworm-slim
# What commands of agents need beyond this (compilers, languages) belongs into an image of your own, made FROM this one.
# tini passes signals on and reaps the processes that commands leave behind.
RUN apt-get update \
  && apt-get install -y --no-install-recommends bubblewrap ca-certificates git ripgrep tini \
  && rm -rf /var/lib/apt/lists/* \
  && useradd --uid 10001 --user-group --create-home --shell /bin/bash toolgate \
  && install -d -o toolgate -g toolgate -m 0700 /data \
  && install -d -o toolgate -g toolgate /workspace
WORKDIR /app
COPY --from=dependencies /app/node_modules node_modules
COPY package.json ./
COPY gen gen
COPY src src
COPY --from=console /app/dist dist

USER 10001:10001
# Beyond loopback it does not start without TLS, unless TOOLGATE_INSECURE_LISTEN=true says that whoever starts it
# publishes the port on the machine's own loopback, or puts a proxy with TLS before it.
ENV NODE_ENV=production \
  TOOLGATE_LISTEN=0.0.0.0:7420 \
  TOOLGATE_DATA=/data \
  TOOLGATE_WORKSPACE=/workspace
VOLUME ["/data", "/workspace"]
EXPOSE 7420

# It asks itself, so it need not look at the certificate. Where client certificates are wanted, give another check.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["node", "-e", "\
  require(process.env.TOOLGATE_TLS_CERT ? 'https' : 'http')\
    .get({ host: '127.0.0.1', port: 7420, path: '/readyz', rejectUnauthorized: false }, ({ statusCode }) => process.exit(statusCode === 200 ? 0 : 1))\
    .on('error', () => process.exit(1))"]
ENTRYPOINT ["tini", "--", "node", "/app/src/main.ts"]
CMD ["serve"]
